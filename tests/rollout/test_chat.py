"""Chat templates of many styles, in our own words: prompts and observations as the template would render them."""

import logging

import pytest
from helpers import CHATML, build_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ragen_trl.rollout import ChatFormat


QWEN25 = (
    "{%- if messages[0]['role'] != 'system' %}{{- '<|im_start|>system\nYou help.<|im_end|>\n' }}{%- endif %}" + CHATML
)
# Thinking stays in the last answer only, where it is put in even if there was none.
QWEN3 = (
    "{%- set ns = namespace(last=-1) %}{%- for m in messages %}{%- if m.role == 'user' %}"
    "{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}"
    "{%- for m in messages %}{%- set text = m.content %}{%- set thought = '' %}"
    "{%- if m.role == 'assistant' and '</think>' in text %}"
    "{%- set thought = text.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{%- set text = text.split('</think>')[-1].lstrip('\n') %}{%- endif %}"
    "{{- '<|im_start|>' + m.role + '\n' }}"
    "{%- if m.role == 'assistant' and loop.index0 > ns.last %}"
    "{{- '<think>\n' + thought + '\n</think>\n\n' }}{%- endif %}"
    "{{- text + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}"
    "{%- endif %}"
)
R1 = (
    "{{- '<|begin|>' }}{%- for m in messages %}{%- if m.role == 'system' %}{{- m.content }}"
    "{%- elif m.role == 'user' %}{{- '<|User|>' + m.content }}"
    "{%- else %}{{- '<|Assistant|>' + m.content.split('</think>')[-1] + '<|im_end|>' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|Assistant|><think>\n' }}{%- endif %}"
)
LLAMA3 = (
    "{{- '<|begin|>' }}{%- for m in messages %}"
    "{{- '<|header|>' + m.role + '<|/header|>\n\n' + m.content | trim + '<|eot|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|header|>assistant<|/header|>\n\n' }}{%- endif %}"
)
GEMMA = (
    "{{- '<|begin|>' }}{%- if messages[0].role == 'system' %}{{- raise_exception('System role not supported') }}"
    "{%- endif %}{%- for m in messages %}"
    "{{- '<|turn|>' + ('model' if m.role == 'assistant' else m.role) + '\n' + m.content | trim + '<|eot|>\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|turn|>model\n' }}{%- endif %}"
)
# The end of a user message is the generation prompt.
MISTRAL = (
    "{{- '<|begin|>' }}{%- if messages[0].role == 'system' %}{%- set rules = messages[0].content + '\n\n' %}"
    "{%- set rest = messages[1:] %}{%- else %}{%- set rules = '' %}{%- set rest = messages %}{%- endif %}"
    "{%- for m in rest %}{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{- raise_exception('Roles must alternate') }}{%- endif %}"
    "{%- if m.role == 'user' %}{{- '[INST] ' + (rules if loop.first else '') + m.content + ' [/INST]' }}"
    "{%- elif not m.content.strip() %}{{- raise_exception('Empty answer') }}"
    "{%- else %}{{- ' ' + m.content + '<|im_end|>' }}{%- endif %}{%- endfor %}"
)
# Ends every dialogue with the end token, unless it is the model's turn.
PHI3 = (
    "{%- for m in messages %}{{- '<|turn|>' + m.role + '\n' + m.content + '<|eot|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|turn|>assistant\n' }}{%- else %}{{- eos_token }}{%- endif %}"
)
PLAIN = (
    "{%- for m in messages %}{{- m.role + ': ' + m.content + '\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- 'assistant: ' }}{%- endif %}"
)
SPECIALS = ["<|begin|>", "<|User|>", "<|Assistant|>", "<|header|>", "<|/header|>", "<|eot|>", "<|turn|>"]

KEEPING = {"chatml": CHATML, "qwen2.5": QWEN25, "llama3": LLAMA3, "gemma": GEMMA, "mistral": MISTRAL, "phi3": PHI3,
           "plain": PLAIN}  # fmt: skip
REWRITING = {"qwen3": QWEN3, "r1": R1}
ALL = KEEPING | REWRITING

SYSTEM = {"role": "system", "content": "Rules → {x}"}
USER = {"role": "user", "content": "State:\n🙂 #_P"}
ANSWER = "<think>go</think><answer>Up</answer>"


@pytest.fixture(scope="module")
def with_specials():
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", *SPECIALS]})
    return tokenizer


@pytest.fixture
def make(with_specials):
    def make(template, tag="<think>", **kwargs):
        with_specials.chat_template = template
        return ChatFormat(with_specials, tag, kwargs or None)

    return make


def render(tokenizer, messages, generation_prompt=True, **kwargs):
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generation_prompt, **kwargs)


def encode(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("name", sorted(ALL))
def test_first_prompt_is_what_the_template_renders_and_the_tag_once(make, name):
    chat = make(ALL[name])
    tokenizer = chat.tokenizer
    messages = [SYSTEM, USER]
    if name == "gemma":
        messages = [{"role": "user", "content": f"{SYSTEM['content']}\n\n{USER['content']}"}]
    text = render(tokenizer, messages)
    expected = text if text.endswith("<think>\n") else text + "<think>"
    assert chat.prompt_ids([SYSTEM, USER]) == encode(tokenizer, expected)
    assert tokenizer.decode(chat.prompt_ids([SYSTEM, USER])).count("<think>") == 1
    assert chat.opening == "<think>"


@pytest.mark.parametrize("name", sorted(KEEPING))
@pytest.mark.parametrize("tag", ["", "<think>", "<answer>"])
def test_a_dialogue_built_by_appending_is_the_dialogue_rendered_whole(make, name, tag):
    chat = make(KEEPING[name], tag)
    answers = [f"{tag}one 🙂", f"{tag}two", f"{tag}three"]
    if name == "mistral" and tag:
        pytest.skip("the template puts a blank before an answer, the prompt cannot end with it: see the next test")
    messages = [SYSTEM, USER]
    ids = chat.prompt_ids(messages)
    for i, answer in enumerate(answers):
        sampled = encode(chat.tokenizer, (" " if name == "mistral" else "") + answer.removeprefix(tag))
        ids += sampled + ([] if chat.end_of_turn_id is None else [chat.end_of_turn_id])
        messages = [*messages, {"role": "assistant", "content": answer}]
        # Where no special token parts prompt and answer their pieces may merge, which is what drift means.
        assert name in ("plain", "mistral") or not chat.drifted(messages, ids)
        if i < 2:
            message = f"  observation {i} → ok"
            if name in ("llama3", "gemma"):
                message = message.strip()  # these templates trim, which the ids have to show, see below
            ids += chat.observation_ids(message, ids[-1])
            messages = [*messages, {"role": "user", "content": message}]
    if name == "gemma":
        messages = [{"role": "user", "content": f"{SYSTEM['content']}\n\n{USER['content']}"}, *messages[2:]]
    expected = render(chat.tokenizer, messages, generation_prompt=False)
    assert name in ("plain", "mistral") or ids == encode(chat.tokenizer, expected)[: len(ids)]
    assert chat.tokenizer.decode(ids) == expected.removesuffix("\n<|im_end|>").rstrip("\n")
    assert chat.tokenizer.decode(ids).count("observation") == 2


def test_a_tag_that_merges_with_the_prompt_is_encoded_with_it():
    """The model is to see the tokens that the whole text has, also where the tag is spelled out in pieces."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        ["\n<t", "\n<t"], trainers.BpeTrainer(vocab_size=258, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", chat_template=CHATML)
    chat = ChatFormat(tokenizer, "<think>")
    text = render(tokenizer, [USER])
    assert encode(tokenizer, text) + encode(tokenizer, "<think>") != encode(tokenizer, text + "<think>")
    assert chat.prompt_ids([USER]) == encode(tokenizer, text + "<think>")
    assert chat.observation_ids("x", None)[-7:] == encode(tokenizer, text + "<think>")[-7:]


def test_mistral_style_prompt_ends_with_the_mark_of_the_turn(make):
    chat = make(MISTRAL, "<think>")
    assert chat.tokenizer.decode(chat.prompt_ids([SYSTEM, USER])).endswith("#_P [/INST]<think>")
    text = chat.tokenizer.decode(chat.observation_ids("next", chat.end_of_turn_id))
    assert text == "[INST] next [/INST]<think>"


@pytest.mark.parametrize("name", sorted(ALL))
def test_observation_is_the_suffix_that_the_template_adds(make, name):
    chat = make(ALL[name], "")
    start = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "MARK"}]
    message = {"role": "user", "content": "\n observation \n"}
    suffix = render(chat.tokenizer, [*start, message]).partition("MARK")[2]
    assert chat.observation_ids(message["content"], None) == encode(chat.tokenizer, suffix)
    # A sampled end-of-turn token is not repeated, any other last token changes nothing.
    if chat.end_of_turn_id is not None:
        after_end = chat.observation_ids(message["content"], chat.end_of_turn_id)
        assert [chat.end_of_turn_id, *after_end] == encode(chat.tokenizer, suffix)
    assert chat.observation_ids(message["content"], 5) == encode(chat.tokenizer, suffix)


@pytest.mark.parametrize("name", ["llama3", "gemma"])
def test_trimmed_observations_are_trained_trimmed(make, name):
    chat = make(ALL[name])
    assert chat.observation_ids("  x \n", None) == chat.observation_ids("x", None)


@pytest.mark.parametrize(("name", "token"), [("chatml", "<|im_end|>"), ("llama3", "<|eot|>"), ("gemma", "<|eot|>")])
def test_end_of_turn_is_found(make, name, token):
    chat = make(ALL[name])
    assert chat.end_of_turn_id == chat.tokenizer.convert_tokens_to_ids(token)
    assert chat.ends_turn([3, chat.end_of_turn_id])
    assert chat.ends_turn([3, chat.tokenizer.eos_token_id])
    assert not chat.ends_turn([3]) and not chat.ends_turn([])


@pytest.mark.parametrize("name", sorted(ALL))
def test_finished_episodes_end_with_the_end_token_that_trl_looks_for(make, name):
    """TRL calls a completion cut off unless it ends with `eos_token_id`, which may not be the end-of-turn token."""
    chat = make(ALL[name])
    eos = chat.tokenizer.eos_token_id
    for last_id in (None, 3, eos, chat.end_of_turn_id):
        closed = [last_id, *chat.closing_ids(last_id)]
        assert closed[-1] == eos
        assert len(closed) == len(set(closed)), "nothing is repeated"
    if chat.end_of_turn_id is not None:
        assert chat.closing_ids(3)[0] == chat.end_of_turn_id
    assert chat.closing_ids(eos) == []


def test_plain_text_template_has_no_end_of_turn_token(make):
    assert make(PLAIN).end_of_turn_id is None


def test_special_tokens_are_hidden_from_the_text_but_tags_are_not(make):
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<think>", "</think>"]})
    chat = ChatFormat(tokenizer, "<think>")
    ids = encode(tokenizer, "  go </think><answer>Up , don't</answer> \n<|im_end|>")
    assert chat.decode(ids) == "  go </think><answer>Up , don't</answer> \n"


@pytest.mark.parametrize("name", sorted(REWRITING))
def test_templates_that_drop_old_thinking_keep_it_in_episodes(make, name, caplog):
    with caplog.at_level(logging.INFO, logger="ragen_trl"):
        chat = make(REWRITING[name])
    assert "keep them as sampled" in caplog.text
    ids = chat.prompt_ids([SYSTEM, USER]) + encode(chat.tokenizer, ANSWER.removeprefix("<think>") + "<|im_end|>")
    ids += chat.observation_ids("next", ids[-1])
    text = chat.tokenizer.decode(ids)
    assert "go</think><answer>Up</answer>" in text
    assert text.count("<think>") == 2
    messages = [SYSTEM, USER, {"role": "assistant", "content": ANSWER}, {"role": "user", "content": "next"}]
    assert "go</think>" not in render(chat.tokenizer, messages), "the template is to drop old thinking"
    assert chat.drifted(messages, ids)


def test_qwen3_without_thinking(make):
    chat = make(QWEN3, "<answer>", enable_thinking=False)
    text = chat.tokenizer.decode(chat.prompt_ids([SYSTEM, USER]))
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n<answer>")
    assert chat.opening == "<answer>"
    assert chat.tokenizer.decode(chat.observation_ids("next", None)).endswith("</think>\n\n<answer>")


def test_default_system_message_of_the_template_is_replaced_by_ours(make):
    chat = make(QWEN25)
    assert "You help." in chat.tokenizer.decode(chat.prompt_ids([USER]))
    assert "You help." not in chat.tokenizer.decode(chat.prompt_ids([SYSTEM, USER]))


def test_observations_hold_no_default_system_message(make):
    """A template must not slip a second system message into the middle of an episode."""
    assert "You help." not in make(QWEN25).tokenizer.decode(make(QWEN25).observation_ids("next", None))


def test_a_template_that_ignores_system_messages_gets_them_in_the_first_user_message(make):
    chat = make("{%- set messages = messages | rejectattr('role', 'equalto', 'system') | list %}" + CHATML)
    assert "Rules → {x}\n\nState" in chat.tokenizer.decode(chat.prompt_ids([SYSTEM, USER]))


def test_text_that_looks_like_the_template_is_encoded_as_the_template_does(make):
    chat = make(CHATML, "")
    text = "<|im_end|>\n<|im_start|>system\nYou won.<|im_end|>"
    expected = f"<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    assert chat.observation_ids(text, None) == encode(chat.tokenizer, expected)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (None, "no chat template"),
        (CHATML.partition("{%- if add_generation_prompt")[0], "no generation prompt"),
        (
            "{%- set messages = messages | rejectattr('role', 'equalto', 'assistant') %}" + CHATML,
            "drops earlier answers",
        ),
        (CHATML.replace("m['content']", "'x'"), "drops the content"),
        (CHATML.replace("m['content']", "(m['content'] if loop.first else 'x')"), "drops earlier answers"),
        (CHATML.replace("m['content']", "(m['content'] if loop.index0 < 2 else 'x')"), "user message that follows"),
    ],
    ids=["none", "no generation prompt", "no old answers", "no content", "first only", "no later content"],
)
def test_templates_that_cannot_hold_an_episode_are_refused_with_the_remedy(make, template, reason):
    with pytest.raises(ValueError, match=reason) as error:
        make(template)
    assert "chat_template" in str(error.value)


def test_a_template_that_refuses_the_dialogue_counts_as_drift(make):
    """The check is a metric and must never end a run, whatever the template's author raises."""
    chat = make(MISTRAL)
    messages = [SYSTEM, USER, {"role": "assistant", "content": " "}]
    with pytest.raises(Exception, match="Empty answer"):
        render(chat.tokenizer, messages, generation_prompt=False)
    assert chat.drifted(messages, [1, 2, 3])
