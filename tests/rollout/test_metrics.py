"""Metrics of episodes, by hand."""

import pytest

from ragen_trl.rollout import EpisodeSpec, EpisodeSummary, Trajectory, Turn, episode_metrics, pass_at_k, summarize


def summary(**changes):
    defaults = {
        "env_id": "ragen_envs/Sokoban-v0",
        "group": (1, 0),
        "stop_reason": "terminated",
        "success": False,
        "reward": 0.0,
        "format_penalty": 0.0,
        "turns": 1,
        "tokens": 10,
        "well_formed_turns": 1,
        "cut_turns": 0,
        "actions": 1,
        "invalid_actions": 0,
        "drifted": False,
        "failed": False,
        "error": None,
    }
    return EpisodeSummary(**(defaults | changes))


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [
        (4, 0, 2, 0.0),
        (4, 4, 2, 1.0),
        (4, 1, 1, 0.25),
        (4, 1, 2, 0.5),
        (4, 2, 2, 5 / 6),
        (4, 1, 4, 1.0),
        (3, 2, 2, 1.0),
    ],
)
def test_pass_at_k(n, c, k, expected):
    # e.g. n=4, c=2, k=2: of the 6 pairs one has no success.
    assert pass_at_k(n, c, k) == pytest.approx(expected)


def test_nothing_played_gives_nothing():
    assert episode_metrics([]) == {}


def test_means_over_live_episodes_and_rates_over_all():
    metrics = episode_metrics(
        [
            summary(success=True, reward=2.0, turns=2, tokens=30, well_formed_turns=2, actions=3, invalid_actions=1),
            summary(reward=-0.2, format_penalty=-0.2, turns=2, tokens=20, well_formed_turns=0, cut_turns=1, actions=0,
                    stop_reason="max_turns"),
            summary(reward=1.0, turns=4, tokens=50, well_formed_turns=4, actions=4, invalid_actions=0, drifted=True,
                    stop_reason="token_budget"),
            # A failed episode: its return and length say nothing about the policy.
            summary(success=False, reward=-50.0, turns=1, tokens=10, failed=True, stop_reason="error", error="gone"),
        ]
    )  # fmt: skip
    expected = {
        "env/Sokoban-v0/failure_rate": 1 / 4,
        "env/Sokoban-v0/success_rate": 1 / 3,
        "env/Sokoban-v0/return": (2.0 - 0.2 + 1.0) / 3,
        "env/Sokoban-v0/format_penalty": -0.2 / 3,
        "env/Sokoban-v0/turns": 8 / 3,
        "env/Sokoban-v0/actions": (2 + 0 + 4) / 3,
        "env/Sokoban-v0/invalid_action_rate": 1 / 7,
        # one group with n=3 live rollouts, c=1
        "env/Sokoban-v0/pass@2": 1 - 1 / 3,
        "env/Sokoban-v0/pass@3": 1.0,
        "rollout/stop/terminated": 1 / 4,
        "rollout/stop/truncated": 0.0,
        "rollout/stop/max_turns": 1 / 4,
        "rollout/stop/max_actions": 0.0,
        "rollout/stop/token_budget": 1 / 4,
        "rollout/stop/timeout": 0.0,
        "rollout/stop/error": 1 / 4,
        "rollout/failure_rate": 1 / 4,
        "rollout/retokenization_drift": 1 / 3,
        "rollout/tokens_per_turn": 100 / 8,
        "rollout/well_formed_rate": 6 / 8,
        "rollout/cut_turn_rate": 1 / 8,
    }
    assert metrics == pytest.approx(expected)


def test_spellings_of_one_environment_are_one():
    metrics = episode_metrics(
        [summary(env_id="Sokoban-v0", reward=1.0), summary(env_id="ragen_envs/Sokoban-v0", group=(1, 1), reward=-3.0)]
    )
    assert metrics["env/Sokoban-v0/return"] == -1.0


def test_nothing_is_said_of_turns_where_all_failed():
    metrics = episode_metrics([summary(failed=True, stop_reason="error", turns=1, tokens=5)])
    assert metrics["rollout/failure_rate"] == 1.0 and "rollout/tokens_per_turn" not in metrics


def test_environments_and_groups_are_kept_apart():
    metrics = episode_metrics(
        [
            summary(group=(1, 0), success=True),
            summary(group=(1, 0)),
            summary(group=(1, 1)),
            summary(group=(2, 1), success=True),  # the same place in another batch is another group
            summary(group=(1, 2), env_id="my_package:Mine-v0", success=True),
            summary(group=(1, 2), env_id="my_package:Mine-v0", success=True),
        ]
    )
    assert metrics["env/Sokoban-v0/success_rate"] == 0.5
    assert metrics["env/Mine-v0/success_rate"] == 1.0
    # Only the group of two knows about pass@2.
    assert metrics["env/Sokoban-v0/pass@2"] == 1.0
    assert metrics["env/Mine-v0/pass@2"] == 1.0
    assert "env/Sokoban-v0/pass@4" not in metrics


def test_pass_at_powers_of_two_and_the_group_size():
    episodes = [summary(success=i < 2) for i in range(6)]
    metrics = episode_metrics(episodes)
    assert {name: round(v, 6) for name, v in metrics.items() if "pass@" in name} == {
        "env/Sokoban-v0/pass@2": round(1 - 6 / 15, 6),
        "env/Sokoban-v0/pass@4": round(1 - 1 / 15, 6),
        "env/Sokoban-v0/pass@6": 1.0,
    }
    alone = episode_metrics([summary(success=True)])
    assert {name: value for name, value in alone.items() if "pass@" in name} == {"env/Sokoban-v0/pass@1": 1.0}


def test_all_failed():
    metrics = episode_metrics([summary(failed=True, stop_reason="timeout", turns=0, tokens=0)] * 2)
    assert metrics["env/Sokoban-v0/failure_rate"] == metrics["rollout/failure_rate"] == 1.0
    assert metrics["rollout/stop/timeout"] == 1.0
    assert "env/Sokoban-v0/success_rate" not in metrics
    assert "rollout/tokens_per_turn" not in metrics


def test_no_action_at_all_gives_no_rate_of_invalid_ones():
    assert "env/Sokoban-v0/invalid_action_rate" not in episode_metrics([summary(actions=0)])


def make_trajectory(**changes):
    turns = [
        Turn([1, 2], "m", token_ids=[3, 4], logprobs=[-1.0, -2.0], actions=("a", "b"), invalid_actions=1,
             well_formed=True, reward=1.0, format_penalty=-0.1),
        Turn([5, 6, 7], "n", token_ids=[8], logprobs=[-3.0], cut=True, format_penalty=-0.1, success=True),
    ]  # fmt: skip
    values = {"turns": turns, "closing_ids": [9], "stop_reason": "max_turns"} | changes
    return Trajectory(EpisodeSpec("ragen_envs/Sokoban-v0", 7), **values)


def test_trajectory_and_summary():
    trajectory = make_trajectory()
    assert trajectory.prompt_ids == [1, 2]
    assert trajectory.completion_ids == [3, 4, 5, 6, 7, 8, 9]
    assert trajectory.context_ids == [1, 2, 3, 4, 5, 6, 7, 8]
    assert trajectory.env_mask == [1, 1, 0, 0, 0, 1, 0]
    assert trajectory.logprobs == [-1.0, -2.0, 0.0, 0.0, 0.0, -3.0, 0.0]
    assert trajectory.reward == pytest.approx(0.8)
    assert trajectory.num_actions == 1
    assert trajectory.success
    result = summarize(trajectory, (3, 1), drifted=True)
    assert (result.turns, result.tokens, result.actions, result.invalid_actions) == (2, 3, 2, 1)
    assert (result.cut_turns, result.well_formed_turns, result.success) == (1, 1, True)
    assert result.reward == pytest.approx(0.8) and result.format_penalty == pytest.approx(-0.2)
    assert result.group == (3, 1) and result.drifted and not result.failed


@pytest.mark.parametrize("reason", ["error", "timeout"])
def test_a_failed_trajectory_trains_nothing(reason):
    trajectory = make_trajectory(stop_reason=reason, error="gone")
    assert trajectory.failed and not trajectory.success
    assert trajectory.env_mask == [0] * 7
    assert summarize(trajectory, (0, 0), drifted=False).error == "gone"


def test_an_empty_trajectory_has_empty_everything():
    trajectory = Trajectory(EpisodeSpec("x", 0), stop_reason="error")
    assert trajectory.prompt_ids == trajectory.completion_ids == trajectory.env_mask == trajectory.logprobs == []
    assert trajectory.reward == 0 and not trajectory.success and trajectory.completion_messages == []
