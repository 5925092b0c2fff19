"""Real answers: every gold answer of GSM8K is accepted in whatever way it is written, and what is near it is not."""

import json
from pathlib import Path

import pytest

from ragen_envs import make_env
from ragen_envs.answers import answers_match
from ragen_envs.metamathqa import gold_answer


FOLDER = Path(__file__).parents[3] / "shared" / "data" / "math"
FILES = ("gsm8k_train_metamath_schema.jsonl", "gsm8k_test_metamath_schema.jsonl")
MISSING = not all((FOLDER / name).exists() for name in FILES)

pytestmark = pytest.mark.skipif(MISSING, reason=f"{FOLDER} does not have {' and '.join(FILES)}")

# {g} the gold answer, {n} the number as digits, {c} with thousands commas; {s} its sign, and {a} and {b} the same as
# {n} and {c} without it; {d} twice the number, {m} another.
RIGHT = (
    "{g}",
    "{n}",
    "{c}",
    "{n}.0",
    "{c}.00",
    "${s}{a}",
    "{s}${b}",
    "{n} clips",
    "{c} dollars a day",
    "{n} square meters",
    "{n}%",
    r"\boxed{{{n}}}",
    r"$\boxed{{{c} \text{{ eggs}}}}$",
    r"\[ \boxed{{{n}}} \]",
    "**{n}**",
    "`{n}`",
    "The answer is {n}.",
    "The answer is: {c}",
    "The final answer is **{n}** apples.",
    "Final Answer: {n}",
    "#### {c}",
    "She sold {c} clips in total.",
    "Therefore, Natalia's friends have {n} apples left!",
    "First we add, then we take away.\nSo in the end\n{n}",
    "x = {n}",
    "total = ${s}{a}",
    r"\frac{{{d}}}{{2}}",
    r"$\dfrac{{{d}}}{{2}}$",
    "{d}/2",
    r"\text{{{n}}}",
    r"{n}\text{{ cm}}",
    "= {n}",
    "{n}\u00a0",
    "Up to here: 12 * 3 = 36.\nThe answer is {n}, because 3 * 12 = 36 too.\n",
)
# The same with the value changed, or so that it is not clear that it is meant.
WRONG_VALUE = (
    "{n}",
    "{c}",
    "{n} clips",
    r"\boxed{{{n}}}",
    "The answer is {n}.",
    "She sold {n} clips in total.",
    "x = {n}",
)
UNCLEAR = (
    "{n} dozen",
    "{n} thousand",
    "{n}x",
    "{n} or {m}",
    "{n}, {m}",
    "{n} to {m}",
    "between {n} and {m}",
    "not {n}",
    "The answer is not {n}.",
    "more than {n}",
    "about {n} clips",
    "{n} + {m}",
    "{n}^2",
    "{n}!",
    "{n} and a half",
    "She sold {n} of {m} clips.",
    "{n}x = {m}",
    "x > {n}",
    r"\sqrt{{{n}}}",
    r"\boxed{{{n}}}, no, \boxed{{{m}}}",
    "The answer is {n}. No, the answer is {m}.",
    "{n}\n{m}",
    "",
)


def gold_answers():
    """Different gold answers with their values."""
    found = []
    for name in FILES:
        with (FOLDER / name).open(encoding="utf-8") as lines:
            found += [gold_answer(json.loads(line)["response"]) for line in lines]
    assert len(found) == 2500 and all(found)
    return [(gold, int(gold.replace(",", ""))) for gold in dict.fromkeys(found)]


def forms(value):
    return {
        "n": value,
        "c": f"{value:,}",
        "s": "-" if value < 0 else "",
        "a": abs(value),
        "b": f"{abs(value):,}",
        "d": 2 * value,
        "m": value + 1,
    }


def test_every_gold_answer_is_accepted_in_every_way_of_writing():
    assert len(RIGHT) >= 12
    for gold, value in gold_answers():
        for form in RIGHT:
            written = form.format(g=gold, **forms(value))
            assert answers_match(written, gold), (written, gold)


def test_near_misses_are_refused():
    for gold, value in gold_answers():
        wrong = {value + 1, value - 1, value * 10, -value, value + 1000, int(f"1{abs(value)}")} - {value}
        for other in wrong:
            for form in WRONG_VALUE:
                written = form.format(**forms(other))
                assert not answers_match(written, gold), (written, gold)
        for written in (
            f"{value}.5",
            f"{value}.01",
            f"{value},5",
            *((f"{value}/7", f"0.{value}") if value > 0 else ()),
        ):
            assert not answers_match(written, gold), (written, gold)


def test_unclear_answers_are_refused():
    for gold, value in gold_answers():
        for form in UNCLEAR:
            written = form.format(**forms(value))
            assert not answers_match(written, gold), (written, gold)


@pytest.mark.parametrize("name", FILES)
def test_environment_plays_the_real_problems(name):
    train, held_out = (make_env("MetaMathQA-v0", dataset=str(FOLDER / name), split=s) for s in ("train", "validation"))
    questions = {question.query for question in train.questions}
    assert not questions & {question.query for question in held_out.questions}
    assert len(train.questions) + len(held_out.questions) == {FILES[0]: 2000, FILES[1]: 500}[name]
    for env in (train, held_out):
        for seed in range(50):
            env.reset(seed=seed)
            gold = env.oracle_action()
            assert env.step(f"I think so.\nThe answer is: **{gold}** in all.")[1] == 1.0
