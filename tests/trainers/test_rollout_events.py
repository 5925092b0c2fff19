"""The event that callbacks get for every generation."""

import pytest
import torch
from filter_kit import Plain, alternating, spreads
from kit import Recording, parameters, trainer
from test_plain_trl import QUESTIONS, Board, length_reward, multiply, tool_tokenizer  # noqa: F401

from ragen_trl import env_dataset
from ragen_trl.callbacks import RolloutCallback


class Listener(RolloutCallback):
    def __init__(self):
        self.seen = []

    def on_rollout_end(self, args, state, control, *, trainer, rollouts, **kwargs):
        self.seen.append((state.global_step, rollouts, parameters(trainer.model), trainer))


def heard(folder, model, tokenizer, data=None, **kwargs):
    listener = Listener()
    made = trainer(folder, model, tokenizer, data, callbacks=[listener], **kwargs)
    made.train()
    return made, listener.seen


def test_episodes(model, tokenizer, tmp_path):
    made, seen = heard(tmp_path, model, tokenizer, kind=Recording, eval_dataset=env_dataset("helpers:Counter-v0", 2),
                       settings={"eval_strategy": "steps", "eval_steps": 1})  # fmt: skip
    training = [batch for batch in made.batches if len(batch) == 8]
    assert [step for step, *_ in seen] == [0, 1], "training only"
    for (_, rollouts, _, _), batch in zip(seen, [training[0], training[2]], strict=True):
        assert rollouts.trajectories == batch
        assert rollouts.prompt_ids == [t.prompt_ids for t in batch]
        assert rollouts.completion_ids == [t.completion_ids for t in batch]
        assert rollouts.sampled == [t.env_mask for t in batch]
        assert rollouts.groups == [0] * 4 + [1] * 4
        torch.testing.assert_close(rollouts.rewards, torch.tensor([t.reward for t in batch], dtype=torch.float64))
    assert not all(torch.equal(v, seen[1][2][n]) for n, v in seen[0][2].items()), "the policy that made them"


def test_it_comes_before_the_filter(model, tokenizer, tmp_path):
    made, seen = heard(
        tmp_path, model, tokenizer, spreads([0, 1]), kind=Plain, reward_funcs=alternating,
        settings={"reward_variance_filtering": "top_p", "shuffle_dataset": False, "max_steps": 1},
    )  # fmt: skip
    ((_, rollouts, _, _),) = seen
    assert len(rollouts.prompt_ids) == 8 and rollouts.trajectories is None
    assert rollouts.rewards.tolist() == [0, 0, 0, 0, 0, 1, 0, 1]
    assert [len(rows) for rows in made.last_update_rows] == [4]


@pytest.mark.parametrize("case", ["tools", "environment_factory"])
def test_with_the_features_of_trl(model, tool_tokenizer, tmp_path, case):  # noqa: F811
    arguments = {
        "tools": {"reward_funcs": length_reward, "tools": [multiply]},
        "environment_factory": {"environment_factory": Board},
    }[case]
    _, seen = heard(tmp_path, model, tool_tokenizer, QUESTIONS, settings={"max_steps": 1}, **arguments)
    ((_, rollouts, _, _),) = seen
    assert all(len(ids) == len(mask) > 0 for ids, mask in zip(rollouts.completion_ids, rollouts.sampled, strict=True))
