"""The turn loop with scripted players: limits, stop reasons, penalties, and instances used again."""

import pytest
from helpers import Counter

from ragen_trl.rollout import ChatFormat, Completion, EpisodeSpec, PolicyGenerator, RolloutEngine, RolloutSettings


def say(*actions):
    return f"go</think><answer>{' || '.join(actions)}</answer>"


def player(*texts):
    """Says the texts one after another, the last one for ever."""
    return lambda trajectory: texts[min(len(trajectory.turns), len(texts)) - 1]


def engine_for(tokenizer, policy, settings=None):
    settings = settings or RolloutSettings(max_completion_length=100_000)
    chat = ChatFormat(tokenizer, settings.opening_tag)
    return RolloutEngine(settings, chat, PolicyGenerator(tokenizer, policy))


def play(tokenizer, *texts, settings=None, env_id="helpers:Counter-v0", seed=7, **env_kwargs):
    engine = engine_for(tokenizer, player(*texts), settings)
    return engine.run([EpisodeSpec(env_id, seed, env_kwargs)])[0]


def settings(**changes):
    return RolloutSettings(**({"max_completion_length": 100_000} | changes))


def test_terminated(tokenizer):
    trajectory = play(tokenizer, say("a", "b"), say("c", "win"))
    assert trajectory.stop_reason == "terminated" and trajectory.success and not trajectory.failed
    assert [turn.actions for turn in trajectory.turns] == [("a", "b"), ("c", "win")]
    assert [turn.reward for turn in trajectory.turns] == [2.0, 2.0]
    assert [turn.format_penalty for turn in trajectory.turns] == [0.0, 0.0]
    assert trajectory.reward == 4.0
    assert trajectory.turns[1].observation == "seed 7 count 2"


def test_terminated_without_success(tokenizer):
    trajectory = play(tokenizer, say("lose"))
    assert trajectory.stop_reason == "terminated" and not trajectory.success


def test_truncated_by_the_environment(tokenizer):
    assert play(tokenizer, say("stop")).stop_reason == "truncated"


def test_actions_after_the_end_are_not_taken(tokenizer):
    trajectory = play(tokenizer, say("win", "a", "b"))
    assert trajectory.turns[0].actions == ("win",) and trajectory.reward == 1.0


def test_limit_on_turns(tokenizer):
    assert len(play(tokenizer, say("a")).turns) == 4
    trajectory = play(tokenizer, say("a"), settings=settings(max_turns=2))
    assert trajectory.stop_reason == "max_turns" and len(trajectory.turns) == 2


def test_limit_on_actions_counts_valid_ones_and_cuts_the_last_turn(tokenizer):
    trajectory = play(tokenizer, say("a", "bad", "b"), settings=settings(max_actions=3))
    assert trajectory.stop_reason == "max_actions"
    assert [turn.actions for turn in trajectory.turns] == [("a", "bad", "b"), ("a",)]
    assert trajectory.num_actions == 3
    # The invalid action of the first turn costs once, the cut second turn nothing.
    assert [turn.format_penalty for turn in trajectory.turns] == [-0.1, 0.0]


def test_limit_on_actions_in_a_turn_drops_the_rest(tokenizer):
    trajectory = play(tokenizer, say("a", "b", "c", "win"))
    assert trajectory.turns[0].actions == ("a", "b", "c")
    trajectory = play(tokenizer, say("a", "b", "win"), settings=settings(max_actions_per_turn=2))
    assert trajectory.turns[0].actions == ("a", "b")


def test_one_action_a_turn_keeps_the_bars(tokenizer):
    trajectory = play(tokenizer, say("a", "b"), settings=settings(max_actions_per_turn=1))
    assert trajectory.turns[0].actions == ("a || b",)


def test_turns_over_their_token_limit_are_cut_and_stay_open(tokenizer):
    trajectory = play(tokenizer, "word " * 100, settings=settings(max_tokens_per_turn=10, max_turns=2))
    assert [len(turn.token_ids) for turn in trajectory.turns] == [10, 10]
    assert all(turn.cut and not turn.well_formed and turn.format_penalty == -0.1 for turn in trajectory.turns)
    assert sum(trajectory.env_mask) == 20, "what is kept of a cut answer is trained"
    assert trajectory.closing_ids == [], "a cut episode must look cut"
    # The next turn nevertheless starts after a proper end of turn.
    assert trajectory.turns[1].context_ids[0] == tokenizer.eos_token_id


def test_a_turn_that_ends_itself_is_not_cut(tokenizer):
    trajectory = play(tokenizer, "no answer<|im_end|>", settings=settings(max_turns=1))
    assert not trajectory.turns[0].cut and not trajectory.turns[0].well_formed
    assert trajectory.closing_ids == []


def test_a_finished_episode_is_closed_but_the_closing_is_not_trained(tokenizer):
    trajectory = play(tokenizer, say("win"))
    assert trajectory.closing_ids == [tokenizer.eos_token_id]
    assert trajectory.env_mask[-1] == 0 and trajectory.env_mask[-2] == 1
    assert play(tokenizer, say("win") + "<|im_end|>").env_mask[-1] == 1


@pytest.mark.parametrize("budget", range(64, 700, 53))
def test_token_budget_plays_whole_turns_only(tokenizer, budget):
    whole = play(tokenizer, say("a"), settings=settings(prompt_style="compact"))
    trajectory = play(
        tokenizer, say("a"), settings=settings(max_completion_length=budget, prompt_style="compact"), seed=7
    )
    assert len(trajectory.completion_ids) <= budget
    number = len(trajectory.turns)
    assert trajectory.turns == whole.turns[:number]
    used = 0
    for turn in trajectory.turns:  # each had room for the longest answer when it began
        used += 0 if turn is trajectory.turns[0] else len(turn.context_ids)
        assert used + 64 <= budget
        used += len(turn.token_ids)
    if number < 4:
        assert trajectory.stop_reason == "token_budget"
        next_turn = whole.turns[number]
        used = sum(len(turn.context_ids) + len(turn.token_ids) for turn in whole.turns[:number])
        used -= len(whole.prompt_ids)
        assert used + len(next_turn.context_ids) + 64 > budget, "one more turn would have fitted"
    else:
        assert trajectory.stop_reason == "max_turns"


def test_observation_of_900_tokens_with_200_left(tokenizer):
    """Field report 46: the last observation is whole or absent."""
    settings_ = settings(max_completion_length=264)
    trajectory = play(tokenizer, say("a"), settings=settings_, filler=900)
    assert trajectory.stop_reason == "token_budget" and not trajectory.failed
    assert len(trajectory.turns) == 1 and trajectory.turns[0].reward == 1.0
    assert len(trajectory.completion_ids) == len(trajectory.env_mask) == len(trajectory.logprobs)
    assert trajectory.env_mask == [1] * len(trajectory.turns[0].token_ids) + [0]
    assert "......" not in tokenizer.decode(trajectory.completion_ids)


def test_format_penalty_once_a_turn(tokenizer):
    trajectory = play(
        tokenizer,
        say("bad", "bad", "bad"),
        "nonsense",
        "go</think><answer> || </answer>",
        say("a"),
        settings=settings(format_penalty=-0.25),
    )
    assert [turn.format_penalty for turn in trajectory.turns] == [-0.25, -0.25, -0.25, 0.0]
    assert [turn.invalid_actions for turn in trajectory.turns] == [3, 0, 0, 0]
    assert [turn.well_formed for turn in trajectory.turns] == [True, False, True, True]
    assert trajectory.reward == pytest.approx(1 - 0.75)


def test_a_turn_without_a_valid_action_shows_the_state_again_and_says_so(tokenizer):
    trajectory = play(tokenizer, say("a"), "nonsense", say("bad"), say("b"))
    messages = [turn.message for turn in trajectory.turns]
    assert [turn.observation for turn in trajectory.turns] == ["seed 7 count 0"] + ["seed 7 count 1"] * 3
    assert ["no valid action" in message for message in messages] == [False, False, True, True]
    assert ["Reward: 1" in message for message in messages] == [False, True, False, False]
    assert ["8 action", "7 action", "7 action", "7 action"] == [
        message.partition("You have ")[2][:8] for message in messages
    ]


def test_forced_tag(tokenizer):
    trajectory = play(tokenizer, say("win"))
    assert trajectory.turns[0].text == "<think>" + say("win")
    assert tokenizer.decode(trajectory.prompt_ids).endswith("assistant\n<think>")
    trajectory = play(tokenizer, say("win"), settings=settings(force_tag=False, max_turns=1))
    assert not trajectory.turns[0].well_formed and trajectory.turns[0].text == say("win")
    assert tokenizer.decode(trajectory.prompt_ids).endswith("assistant\n")
    assert play(tokenizer, "<think>" + say("win"), settings=settings(force_tag=False)).success


def test_without_thinking(tokenizer):
    trajectory = play(tokenizer, "win</answer>", settings=settings(enable_think=False))
    assert trajectory.success and trajectory.turns[0].reasoning is None
    assert tokenizer.decode(trajectory.prompt_ids).endswith("assistant\n<answer>")
    assert "<think>" not in tokenizer.decode(trajectory.prompt_ids)


def test_a_doubled_tag_from_the_model_does_no_harm(tokenizer):
    assert play(tokenizer, "<think>" + say("win")).success


def test_messages_of_the_row_come_first(tokenizer):
    engine = engine_for(tokenizer, player(say("win")))
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello."}]
    trajectory = engine.run([EpisodeSpec("helpers:Counter-v0", 1, prompt=prompt)])[0]
    system, user = trajectory.prompt_messages
    assert system["content"].startswith("Be brief.\n\n") and "Count." in system["content"]
    assert user["content"].startswith("Hello.\n\nTurn 1:")


def test_different_limits_in_one_batch(tokenizer):
    engine = engine_for(tokenizer, player("word " * 100), settings(max_turns=2))
    specs = [EpisodeSpec("helpers:Counter-v0", 1, {"max_tokens": limit}) for limit in (5, 30, 11)]
    specs.append(EpisodeSpec("helpers:Lottery-v0", 1))
    lengths = [[len(turn.token_ids) for turn in trajectory.turns] for trajectory in engine.run(specs)]
    assert lengths == [[5, 5], [30, 30], [11, 11], [40, 40]]


def test_episodes_of_different_length_keep_to_their_order(tokenizer):
    def policy(trajectory):
        return say("win") if len(trajectory.turns) > trajectory.spec.seed % 4 else say("a")

    trajectories = engine_for(tokenizer, policy).run([EpisodeSpec("helpers:Counter-v0", s) for s in range(8)])
    assert [t.spec.seed for t in trajectories] == list(range(8))
    assert [len(t.turns) for t in trajectories] == [1, 2, 3, 4, 1, 2, 3, 4]
    assert all(t.success for t in trajectories)


def test_the_return_handed_over_is_the_sum_of_the_turns(tokenizer):
    trajectory = play(tokenizer, say("a", "bad"), "x", say("win"), pay=0.5)
    assert trajectory.reward == pytest.approx(0.5 - 0.1 - 0.1 + 0.5)


def test_instances_are_used_again_without_a_trace(tokenizer, monkeypatch):
    made = []
    original = Counter.__init__
    monkeypatch.setattr(Counter, "__init__", lambda self, **kw: (made.append(self), original(self, **kw))[1])
    engine = engine_for(tokenizer, player(say("a"), say("bad"), say("win")))
    specs = [EpisodeSpec("helpers:Counter-v0", seed, noise_seed=(seed,)) for seed in range(6)]
    first = engine.run(specs)
    assert len(made) == 6
    second = engine.run(specs)
    assert len(made) == 6, "instances are not used again"
    assert first == second
    engine.run([EpisodeSpec("helpers:Counter-v0", 0, {"pay": 2.0})])
    assert len(made) == 7, "an instance made with other arguments was used"


def test_instances_of_rows_with_arguments_of_their_own_do_not_pile_up(tokenizer):
    engine = engine_for(tokenizer, player(say("win")))
    for batch in range(12):
        specs = [EpisodeSpec("helpers:Counter-v0", 1, {"pay": 1.0 + 100 * batch + i}) for i in range(64)]
        assert all(t.success for t in engine.run(specs))
    assert sum(map(len, engine._idle.values())) <= 256 + 64


def test_two_episodes_never_share_an_instance(tokenizer):
    """With fewer idle instances than episodes, and many threads, no episode may fail or meet another's state."""
    engine = engine_for(tokenizer, player(say("a"), say("win")), settings(env_workers=16))
    for number in (2, 64, 3, 64):
        trajectories = engine.run([EpisodeSpec("helpers:Counter-v0", s) for s in range(number)])
        assert all(t.error is None for t in trajectories)
        assert all(t.turns[1].observation == f"seed {s} count 1" for s, t in enumerate(trajectories))


def test_taking_an_idle_instance_is_safe_between_threads(tokenizer):
    class Slow(list):
        """A list whose owner is interrupted between asking whether it is empty and taking from it."""

        def __bool__(self):
            filled = len(self) > 0
            list.clear(self)
            return filled

    engine = engine_for(tokenizer, player(say("win")))
    spec = EpisodeSpec("helpers:Counter-v0", 1)
    engine.run([spec])
    for key, pool in engine._idle.items():
        engine._idle[key] = Slow(pool)
    assert engine.run([spec])[0].error is None


def test_members_of_a_group_start_alike_and_have_their_own_luck(tokenizer):
    engine = engine_for(tokenizer, player(say("x")))
    specs = [EpisodeSpec("helpers:Lottery-v0", 5, noise_seed=(5, member, 0)) for member in range(6)]
    trajectories = engine.run(specs)
    assert len({t.turns[0].observation for t in trajectories}) == 1
    assert len({tuple(t.prompt_ids) for t in trajectories}) == 1
    assert len({t.reward for t in trajectories}) == 6
    assert [t.reward for t in engine.run(specs)] == [t.reward for t in trajectories]
    shared = engine.run([EpisodeSpec("helpers:Lottery-v0", 5)] * 4)
    assert len({t.reward for t in shared}) == 1


def test_ranks_are_asked_once_a_turn(tokenizer):
    """A sharded model runs as often on a rank without episodes as on the busiest one."""
    calls, asked = [], []

    class Nothing:
        def generate(self, trajectories, max_new_tokens):
            calls.append(len(trajectories))
            ids = tokenizer(say("win"), add_special_tokens=False)["input_ids"]
            return [Completion(ids, [0.0] * len(ids)) for _ in trajectories]

    def agree(playing):
        asked.append(playing)
        return len(asked) <= 3  # the other rank plays three turns

    engine = RolloutEngine(settings(), ChatFormat(tokenizer, "<think>"), Nothing(), agree=agree)
    assert engine.run([EpisodeSpec("helpers:Counter-v0", 1)])[0].success
    assert calls == [1, 0, 0]
    assert asked == [True, False, False, False]


def test_an_environment_without_an_observation_ends_its_own_episode(tokenizer):
    """A template may refuse an empty message; that is one episode's trouble."""
    tokenizer.chat_template = (
        "{%- for m in messages %}{%- if not m.content %}{{- raise_exception('empty message') }}{%- endif %}"
        "{%- endfor %}" + tokenizer.chat_template
    )
    engine = engine_for(tokenizer, player(say("a"), say("win")), settings(prompt_style="compact"))
    specs = [EpisodeSpec("helpers:Mute-v0", 1, noise_seed=(1,)), EpisodeSpec("helpers:Counter-v0", 1)]
    mute, other = engine.run(specs)
    assert mute.stop_reason == "error" and "empty message" in mute.error
    assert other.success


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_turns": 0}, "`max_turns` must be a whole number of at least 1, got 0"),
        ({"max_actions": -1}, "`max_actions` must be a whole number of at least 1"),
        ({"max_actions_per_turn": 0}, "`max_actions_per_turn` must be a whole number of at least 1"),
        ({"max_tokens_per_turn": 0}, "`max_tokens_per_turn` must be a whole number of at least 1"),
        ({"max_completion_length": 0}, "`max_completion_length` must be a whole number of at least 1"),
        ({"max_turns": "5"}, "`max_turns` must be a whole number of at least 1, got '5'"),
        ({"max_tokens_per_turn": 2.5}, "`max_tokens_per_turn` must be a whole number of at least 1, got 2.5"),
        ({"episode_timeout": "10"}, "`episode_timeout` must be positive or `None`, got '10'"),
        ({"format_penalty": None}, "`format_penalty` must be zero or negative, got None"),
        ({"env_workers": 0}, "`env_workers` must be a whole number of at least 1"),
        ({"episode_timeout": 0}, "`episode_timeout` must be positive or `None`, got 0"),
        ({"episode_timeout": float("nan")}, "`episode_timeout` must be positive"),
        ({"format_penalty": 0.1}, "`format_penalty` must be zero or negative, got 0.1"),
        ({"format_penalty": float("nan")}, "`format_penalty` must be zero or negative"),
        ({"format_penalty": float("-inf")}, "`format_penalty` must be zero or negative"),
        ({"prompt_style": "fancy"}, r"one of \['compact', 'instruct'\], got 'fancy'"),
        ({"context": "window"}, "`context` must be 'full', got 'window'"),
    ],
)
def test_settings_out_of_range_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        settings(**changes)


def test_limits_without_room_for_an_answer_are_refused():
    env = Counter()
    for budget in (63, None):
        with pytest.raises(ValueError, match="leaves no room for an answer.*64 tokens.*Raise `max_completion_length`"):
            settings(max_completion_length=budget).limits_for(env)
    assert settings(max_completion_length=64).limits_for(env).max_tokens_per_turn == 64
    assert settings(max_completion_length=10, max_tokens_per_turn=10).limits_for(env).max_tokens_per_turn == 10
