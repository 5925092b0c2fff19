"""Where an answer is looked for in a text."""

import pytest

from ragen_envs.extraction import extract_answer, last_boxed


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        # Alone.
        ("73", "73"),
        ("  73 apples ", "73 apples"),
        ("", ""),
        (" \n ", ""),
        # Boxed: the last box, wherever it stands and whatever else is said.
        (r"So \boxed{73} it is. The answer is 5.", "73"),
        (r"\boxed{2}, no, \boxed{3}", "3"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed {73}", "73"),
        (r"\fbox{73}", "73"),
        (r"\boxed 73 apples", "73"),
        (r"\boxed{73", "73"),
        (r"\boxed{}", ""),
        # After the phrase: the last one, to the end of its sentence or line.
        ("3 + 4 = 7. The answer is 7", "7"),
        ("The answer is: 7. I hope this helps!", "7"),
        ("The answer is 7.5 apples", "7.5 apples"),
        ("The final answer is **7**.", "**7**."),
        ("**Final answer:** 7", "7"),
        ("Final Answer: 7", "7"),
        ("answer = 7", "7"),
        ("The answer to the question is 7", "7"),
        ("The answer is 3. No, the answer is 4.", "4."),
        ("The answer is:\n\n7\nas I said", "7"),
        ("The answer is 7\nbecause 3 + 4 = 7", "7"),
        ("my answer would be 7", "7"),
        ("The answer is 7, because 3 + 4 = 7.", "7"),
        ("the answer is 7 since 3 + 4 = 7", "7"),
        # The last line that says something.
        ("3 + 4\nis\n7\n\n", "7"),
        ("First 3, then 4.\n#### 7", "7"),
        ("Answer 73", "73"),
        # Not the phrase.
        ("answered 5", "answered 5"),
        ("The answers are 2 and 3", "The answers are 2 and 3"),
    ],
)
def test_rule(text, answer):
    assert extract_answer(text) == answer


def test_last_boxed():
    assert last_boxed("73") is None
    assert last_boxed(r"\boxed{a{b}c} d") == "a{b}c"
