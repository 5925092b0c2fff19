"""Refused at construction: the value, what is allowed, and what to do."""

import gymnasium
import pytest
from datasets import Dataset, concatenate_datasets
from helpers import CHATML, Counter
from kit import config, trainer
from trl import GRPOConfig

from ragen_trl import RagenGRPOConfig, env_dataset


def refused(build, *parts, kind=ValueError):
    with pytest.raises(kind) as error:
        build()
    for part in parts:
        assert part in str(error.value), f"{part!r} is not in: {error.value}"


def rows(**columns):
    return Dataset.from_dict(columns)


PROMPT = [[{"role": "user", "content": ""}]]


@pytest.fixture
def make(model, tokenizer, tmp_path):
    return lambda data=None, **kwargs: lambda: trainer(tmp_path, model, tokenizer, data, **kwargs)


def test_unknown_environment_proposes_the_nearest(make):
    refused(make(env_dataset("sokobann", 2)), "sokobann", "Did you mean 'ragen_envs/Sokoban-v0'?", "FrozenLake-v0")
    refused(make(env_dataset("no_such_module:My-v0", 2)), "no_such_module", "install it")
    refused(make(env_dataset("helpers:Countr-v0", 2)), "Countr-v0", "register")
    good = env_dataset("helpers:Counter-v0", 3)
    mixed = concatenate_datasets([good, env_dataset("ragen_envs/FrozenLke-v0", 1)])
    refused(make(mixed), "FrozenLke-v0", "Did you mean 'ragen_envs/FrozenLake-v0'?")
    refused(make(good, eval_dataset={"a": good, "b": env_dataset("sokobann", 1)}), "Sokoban-v0")


class Rude(Counter):
    """Raises on what it does not understand."""

    def step(self, action):
        if action.startswith("§"):
            raise KeyError(action)
        return super().step(action)


class Unlimited(Counter):
    """Says nothing of its limits."""

    limits = None


for _class in (Rude, Unlimited):
    gymnasium.register(f"{_class.__name__}-v0", entry_point=_class, disable_env_checker=True, order_enforce=False)


def test_environments_that_break_the_contract(make):
    refused(make(env_dataset("Rude-v0", 2)), "Rude", "raised KeyError", "to mend it")
    refused(make(env_dataset("Unlimited-v0", 2)), "Unlimited", "limits=None", "ragen_envs.Limits")
    refused(make(env_dataset("helpers:Counter-v0", 2, env_kwargs={"size": 5})), "size", kind=(ValueError, TypeError))


@pytest.mark.parametrize("missing", ["prompt", "seed"])
def test_missing_columns(make, missing):
    data = env_dataset("helpers:Counter-v0", 2).remove_columns([missing])
    refused(make(data), f"`train_dataset` lacks the column(s) ['{missing}']", "env_id", "env_dataset")
    good = env_dataset("helpers:Counter-v0", 2)
    refused(make(good, eval_dataset=data), f"`eval_dataset` lacks the column(s) ['{missing}']")
    refused(make(good, eval_dataset={"hard": data}), "eval_dataset['hard']")
    refused(make(data.to_iterable_dataset()), f"lacks the column(s) ['{missing}']")


def test_rows_without_a_value(make):
    refused(
        make(rows(prompt=PROMPT * 2, env_id=["helpers:Counter-v0", None], seed=[1, 2])), "env_id=None", "every row"
    )
    refused(make(rows(prompt=PROMPT * 2, env_id=["helpers:Counter-v0"] * 2, seed=[1, None])), "seed=None")
    refused(make(rows(prompt=PROMPT * 2, env_id=["helpers:Counter-v0"] * 2, seed=[1, -2])), "seed=-2", "0 or more")
    refused(make(rows(prompt=PROMPT, env_id=["helpers:Counter-v0"], seed=[1], env_kwargs=["{oops"])), "{oops", "JSON")
    refused(
        make(rows(prompt=PROMPT, env_id=["helpers:Counter-v0"], seed=[1], env_kwargs=["[1]"])), "[1]", "JSON object"
    )


@pytest.mark.parametrize("seed", [float("nan"), "abc", 0.5, -1, "-1", float("inf")])
def test_seeds_that_are_none(make, seed):
    row = {"prompt": PROMPT * 2, "env_id": ["helpers:Counter-v0"] * 2}
    good = 7 if not isinstance(seed, str) else "7"
    refused(make(rows(seed=[good, seed], **row)), str(seed), "whole numbers of 0 or more")


def test_large_seeds_are_seeds(make):
    make(env_dataset("helpers:Counter-v0", 8, seed=2**53 + 1))()
    refused(lambda: env_dataset("helpers:Counter-v0", 8, seed=2**63), "below 2**63")
    refused(lambda: env_dataset("helpers:Counter-v0", 8, seed=-1), "0 or more", "-1")


def test_a_bad_prompt_in_a_later_row(make):
    good = [{"role": "user", "content": ""}]
    row = {"env_id": ["helpers:Counter-v0"] * 2, "seed": [1, 2]}
    refused(make(rows(prompt=[good, [{"role": "assistant", "content": "y"}]], **row)), "assistant", "user")
    refused(make(rows(prompt=[good, []], **row)), "prompt=[]", "at least one message")


def test_fewer_rows_than_a_batch_takes(make):
    refused(make(env_dataset("helpers:Counter-v0", 1)), "1 row(s)", "2 groups", "num_generations=4", "more rows")
    make(env_dataset("helpers:Counter-v0", 2))()


@pytest.mark.parametrize(
    "kwargs", [{"num_beams": 2}, {"no_repeat_ngram_size": 1}, {"min_new_tokens": 5}, {"suppress_tokens": [5]},
               {"guidance_scale": 1.5}, {"bad_words_ids": [[5]]}, {"num_return_sequences": 2}],
)  # fmt: skip
def test_sampling_from_another_distribution(make, model, kwargs):
    (name,) = kwargs
    refused(make(settings={"generation_kwargs": kwargs}), f"generation_kwargs['{name}']", "another distribution")


def test_sampling_from_another_distribution_by_the_model(model, tokenizer, tmp_path):
    model.generation_config.suppress_tokens = [5]
    refused(lambda: trainer(tmp_path, model, tokenizer), "model.generation_config.suppress_tokens", "[5]", "None")


def test_two_temperatures(make):
    settings = {"generation_kwargs": {"temperature": 0.3}}
    refused(make(settings=settings), "temperature 0.3", "temperature=1.0", "Set the second")
    make(settings=settings | {"temperature": 0.3})()


def test_a_budget_that_ends_episodes_early_is_pointed_out(make, caplog):
    make(settings={"max_completion_length": 4 * 12})()
    assert "max_completion_length" not in caplog.text
    several = [env_dataset("helpers:Counter-v0", 2, env_kwargs={"pay": float(i)}) for i in range(3)]
    make(concatenate_datasets(several), settings={"max_completion_length": 4 * 12 - 1})()
    assert caplog.text.count("4 turns of up to 12") == 1
    assert "4 turns of up to 12 tokens take 48" in caplog.text and "max_completion_length=47" in caplog.text


def test_prompts_that_are_no_leading_messages(make):
    row = {"env_id": ["helpers:Counter-v0"], "seed": [1]}
    refused(make(rows(prompt=["text"], **row)), "'text'", "messages")
    answered = [[{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]]
    refused(make(rows(prompt=answered, **row)), "assistant", "system", "user")


def test_empty_data(make):
    refused(make(env_dataset("helpers:Counter-v0", 2).select([])), "`train_dataset` is empty")
    refused(lambda: env_dataset("helpers:Counter-v0", 0), "`num_problems` must be at least 1, got 0")


def test_group_size_that_does_not_divide_the_batch(tmp_path):
    refused(
        lambda: config(tmp_path, per_device_train_batch_size=8, num_generations=3),
        "`num_generations=3` does not divide", "8 rollouts", "[2, 4, 8]", "multiple of 3",
    )  # fmt: skip
    refused(
        lambda: config(tmp_path, per_device_train_batch_size=1, num_generations=4),
        "`num_generations=4` does not divide", "1 rollouts", "split: make the batch a multiple of 4",
    )  # fmt: skip
    refused(lambda: config(tmp_path, num_generations=1), "at least 2 generations", "1")
    refused(lambda: config(tmp_path, num_generations_eval=3, eval_strategy="steps", eval_steps=1), "8", "3")


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"prompt_style": "fancy"}, ("`prompt_style`", "compact", "instruct", "'fancy'")),
        ({"context": "window"}, ("`context`", "full", "'window'")),
        ({"max_turns": 0}, ("`max_turns`", "at least 1", "0")),
        ({"max_tokens_per_turn": -5}, ("`max_tokens_per_turn`", "at least 1", "-5")),
        ({"format_penalty": 1.0}, ("`format_penalty`", "zero or negative", "1.0")),
        ({"episode_timeout": -1}, ("`episode_timeout`", "positive", "-1")),
        ({"max_failure_rate": 1.5}, ("`max_failure_rate`", "between 0 and 1", "1.5")),
        ({"max_failure_rate": float("nan")}, ("`max_failure_rate`", "between 0 and 1", "nan")),
        ({"env_workers": 0}, ("`env_workers`", "at least 1")),
    ],
)
def test_settings_out_of_range(tmp_path, changes, parts):
    refused(lambda: config(tmp_path, **changes), *parts)


@pytest.mark.parametrize(
    ("template", "parts"),
    [
        (None, ("no chat template",)),
        (CHATML.partition("{%- if add_generation_prompt")[0], ("no generation prompt",)),
        (CHATML.replace("m['content']", "'x'"), ("drops the content",)),
    ],
)
def test_chat_templates_that_cannot_hold_an_episode(make, tokenizer, template, parts):
    tokenizer.chat_template = template
    refused(make(), *parts, "Set `processing_class.chat_template`")


def test_no_room_for_an_answer(make):
    refused(
        make(settings={"max_completion_length": 60, "max_tokens_per_turn": None}),
        "max_completion_length=60", "64 tokens", "Raise `max_completion_length`, or lower `max_tokens_per_turn`",
    )  # fmt: skip
    refused(
        make(settings={"max_completion_length": 60, "max_tokens_per_turn": 61}),
        "max_completion_length=60",
        "61 tokens",
    )


def test_data_with_and_without_environments(make):
    with_envs, plain = env_dataset("helpers:Counter-v0", 2), rows(prompt=PROMPT * 2)
    parts = ("Either all datasets of a trainer name environments", "env_id")
    refused(make(with_envs, eval_dataset=plain), *parts, "['eval_dataset'] do not")
    refused(make(plain, eval_dataset=with_envs), *parts, "['train_dataset'] do not")
    refused(make(with_envs, eval_dataset={"a": with_envs, "b": plain}), *parts, "eval_dataset['b']")


def test_plain_configuration_with_environments(make, tmp_path):
    args = config(tmp_path, GRPOConfig)
    refused(make(args=args), "GRPOConfig", "RagenGRPOConfig", kind=TypeError)


def test_two_sources_of_episodes(make):
    refused(make(rollout_func=lambda prompts, trainer: {}), "rollout_func", "drop the argument, or the column")
    refused(make(tools=[print]), "tools", "drop the argument")
    refused(make(environment_factory=Counter), "environment_factory", "drop the argument")


def test_continuous_batching(make):
    refused(
        make(settings={"use_transformers_continuous_batching": True}),
        "use_transformers_continuous_batching",
        "use_vllm",
    )


def test_reward_weights_that_do_not_fit(make):
    """The message counts the user's functions, not the one added for the environment."""
    refused(make(settings={"reward_weights": [1.0, 2.0]}), "reward_weights", "2", "0 reward function")


def test_unknown_setting(tmp_path):
    refused(lambda: RagenGRPOConfig(str(tmp_path), max_turn=3), "max_turn", kind=TypeError)


def test_a_first_prompt_that_leaves_no_room_in_the_context(model, tokenizer, tmp_path):
    """Field report 45: never silently ignored."""
    model.config.max_position_embeddings = 20
    short = trainer(tmp_path, model, tokenizer)
    refused(short.train, "leaves no room for a turn", "20 tokens", kind=RuntimeError)


def test_an_evaluation_batch_that_holds_no_whole_groups(make):
    data = env_dataset("helpers:Counter-v0", 2)
    settings = {"per_device_eval_batch_size": 6, "eval_strategy": "no"}
    refused(make(data, eval_dataset=data, settings=settings), "num_generations_eval=4", "6", "num_generations_eval=1")
    make(data, settings=settings)()
    make(data, eval_dataset=data, settings=settings | {"num_generations_eval": 3})()
    settings |= {"eval_strategy": "steps", "eval_steps": 1}
    refused(make(data, eval_dataset=data, settings=settings), "num_generations_eval=4", "num_generations_eval=1")
