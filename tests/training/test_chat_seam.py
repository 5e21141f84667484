"""Where a chat template lets the target ask itself, for the templates that models come with."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from paceline.chat_template import ChatTemplate
from paceline.defaults import DEFAULT_MODEL_PATH
from paceline.errors import ConfigError
from training.chat_seam import ChatSeam, answer_end

EOS = (2,)
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] | trim + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_3 = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' "
    "+ m['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
INST = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}"
)
SPECIAL = [
    "<s>",
    "<unk>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
]


def tokenizer() -> Tokenizer:
    """Characters, and special tokens."""
    vocabulary = {token: i for i, token in enumerate(SPECIAL)}
    vocabulary |= {chr(code): len(vocabulary) + place for place, code in enumerate([10, *range(32, 127)])}
    made = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Sequence([])
    made.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return made


def seam_of(source: str) -> tuple[ChatSeam, Tokenizer]:
    template = ChatTemplate(source, special_tokens={"bos_token": "<s>", "eos_token": "</s>"})
    made = tokenizer()
    return ChatSeam.of(template, made, eos_ids=EOS), made


def spelt(made: Tokenizer, ids: tuple[int, ...]) -> str:
    return "".join(made.id_to_token(i) for i in ids)


@pytest.mark.parametrize(
    ("source", "prefix", "joint", "ends"),
    [
        (CHATML, "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n", {2, 4}),
        (
            LLAMA_3,
            "<s><|start_header_id|>user<|end_header_id|>\n\n",
            "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
            {2, 7},
        ),
        (INST, "<s>[INST] ", " [/INST]", {2}),
    ],
)
def test_a_template_is_split_around_the_users_words(source: str, prefix: str, joint: str, ends: set[int]) -> None:
    seam, made = seam_of(source)
    assert (spelt(made, seam.prefix), spelt(made, seam.joint)) == (prefix, joint)
    assert set(seam.question_ends) == ends


def test_an_answer_ends_as_the_template_ends_a_turn() -> None:
    made = tokenizer()
    for source, eos_ids, wanted in ((CHATML, (2, 4), 4), (LLAMA_3, (2, 7), 7), (INST, (2, 4), 2), (CHATML, (2,), 2)):
        template = ChatTemplate(source, special_tokens={"bos_token": "<s>", "eos_token": "</s>"})
        assert answer_end(template, made, eos_ids) == wanted


def test_the_default_models_seam_is_its_own_prompt_cut_in_two() -> None:
    template = ChatTemplate.load(DEFAULT_MODEL_PATH)
    assert template is not None
    made = Tokenizer.from_file(str(Path(DEFAULT_MODEL_PATH) / "tokenizer.json"))
    seam = ChatSeam.of(template, made, eos_ids=EOS)
    prompt = template.render([{"role": "user", "content": "Why is the sky blue?"}])
    question = made.encode("Why is the sky blue?", add_special_tokens=False).ids
    assert [*seam.prefix, *question, *seam.joint] == made.encode(prompt, add_special_tokens=False).ids


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ messages[0]['content'] }}{{ messages[0]['content'] }}", "2 times instead of once"),
        ("nothing", "0 times instead of once"),
        ("{{ messages[0]['content'] }}", "puts nothing after a user's words"),
        ("{{ raise_exception('only systems') }}", "refuses a plain question"),
    ],
)
def test_a_template_without_a_place_for_questions_is_refused(source: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        seam_of(source)
