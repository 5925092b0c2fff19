"""Bandit: pull one of two arms, of which only the names are known."""

from __future__ import annotations

from typing import Any

from .core import AnyText, Limits, Split, TextEnv, step_info


LOW_REWARD = 0.1
HIGH_REWARD = 1.0
HIGH_CHANCE = 0.25

# A steady trade, which stands for the low arm, and a risky one that pays more on average, for the high arm.
ARM_NAMES: dict[Split, tuple[tuple[str, str], ...]] = {
    "train": (
        ("Dentist", "Novelist"),
        ("Plumber", "Inventor"),
        ("Bus Driver", "Racing Driver"),
        ("Tax Clerk", "Treasure Hunter"),
        ("Judge", "Film Star"),
        ("Baker", "Prospector"),
        ("Optician", "Songwriter"),
        ("Surveyor", "Speculator"),
        ("Tailor", "Stuntman"),
        ("Caretaker", "Poker Player"),
        ("Farmer", "Oil Driller"),
        ("Tutor", "Comedian"),
    ),
    "validation": (
        ("Electrician", "Pop Singer"),
        ("Midwife", "Day Trader"),
        ("Notary", "Gambler"),
        ("Miller", "Astronaut"),
        ("Typist", "Playwright"),
        ("Watchman", "Bounty Hunter"),
        ("Lighthouse Keeper", "Pearl Diver"),
        ("Auditor", "Boxer"),
    ),
}

_MAX_ACTION_LENGTH = 200


class Bandit(TextEnv):
    """
    Pull one of two arms. Nothing is known of them but their names, which hint at how they pay.

    **Actions.** The name of an arm, whatever its case and blanks. Anything else is invalid.

    **Observation.** The names of both arms; after a pull, what it paid.

    **Start.** A pair of names and their order, drawn by the seed: the same seed brings the same prompt. Resets without
    a seed deal the other prompts, in an order that follows from the last seed, before one comes again.

    **Rewards.** 0.1 from the low arm, always. From the high arm 1 with probability 0.25, else 0. That luck is drawn
    from `options["noise_seed"]` of `reset` or, without it, follows from the seed.

    **End.** After one pull. Success is to have pulled the high arm, whatever it paid.

    Args:
        split (`str`, *optional*, defaults to `"train"`):
            `"train"`, twelve pairs of names, or `"validation"`, eight pairs of other names (the paper's BanditTest).

    Raises:
        `ValueError`: `split` is neither.
    """

    instruction = (
        "You are playing a bandit game: there are two arms, and you pull one of them, once. Each arm has rewards of "
        "its own, and its name hints at what they are like. Work out from the names which arm pays more on average. "
        "Answer with the name of the arm alone."
    )
    limits = Limits(max_turns=1, max_actions_per_turn=1, max_actions=1, max_tokens_per_turn=500, max_words=100)

    def __init__(self, *, split: Split = "train") -> None:
        super().__init__(split=split)
        self._names = AnyText()
        self.action_space = self._names
        self._deck: list[int] = []
        self._high = ""
        self._observation = ""
        self._pulled = ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draw a pair of names; see [`TextEnv`]."""
        super().reset(seed=seed, options=options)
        pairs = ARM_NAMES[self.split]
        if seed is not None or not self._deck:
            self._deck = self.np_random.permutation(2 * len(pairs)).tolist()
        pair, swapped = divmod(self._deck.pop(), 2)
        low, self._high = pairs[pair]
        self._names.samples = (self._high, low) if swapped else (low, self._high)
        self._observation = f"Arms: {', '.join(self._names.samples)}."
        self._pulled = ""
        return self._observation, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Pull an arm; see [`TextEnv`]."""
        self._check_reset()
        arm = None if self._pulled else self._arm(action)
        if arm is None:
            info = step_info(success=self._pulled == self._high, valid=False, effective=False)
            return self._observation, 0.0, bool(self._pulled), False, info
        self._pulled = arm
        high = arm == self._high
        lucky = bool(self.noise.random() < HIGH_CHANCE)
        reward = (HIGH_REWARD if lucky else 0.0) if high else LOW_REWARD
        self._observation = f"{arm} paid {reward:g}."
        return self._observation, reward, True, False, step_info(success=high, valid=True, effective=True)

    def oracle_action(self) -> str | None:
        """Name of the high arm; `None` once an arm was pulled."""
        self._check_reset()
        return None if self._pulled else self._high

    def _check_reset(self) -> None:
        if not self._high:
            raise self.needs_reset()

    def _arm(self, action: str) -> str | None:
        if len(action) > _MAX_ACTION_LENGTH:
            return None
        given = " ".join(action.split()).lower()
        return next((name for name in self._names.samples if name.lower() == given), None)
