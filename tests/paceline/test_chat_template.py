"""Chat templates render as transformers renders them."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from paceline.chat_template import ChatTemplate
from paceline.defaults import DEFAULT_MODEL_PATH
from paceline.errors import InvalidInputError, ModelLoadError

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": 'Say "hi" <b> & é'},
    {"role": "assistant", "content": "hi"},
    {"role": "user", "content": "again"},
]
CHATTY = """{{ bos_token }}
{%- for m in messages %}
    {%- if loop.index0 > 8 %}{% break %}{% endif %}
    {% generation %}[{{ m.role }}] {{ m['content'] | tojson }}{% endgeneration %}
{%- endfor %}
{%- if add_generation_prompt %} [assistant]{% endif %}{% if tools %}no{% endif %}
"""


def oracle(source: str, messages: list[dict[str, str]], **values: str) -> str:
    (text,), _ = render_jinja_template([messages], chat_template=source, add_generation_prompt=True, **values)
    return text


@pytest.mark.parametrize("messages", [MESSAGES, MESSAGES[1:], MESSAGES[1:2]])
def test_the_default_models_template_renders_as_transformers_does(messages: list[dict[str, str]]) -> None:
    template = ChatTemplate.load(DEFAULT_MODEL_PATH)
    assert template is not None
    source = (Path(DEFAULT_MODEL_PATH) / "chat_template.jinja").read_text()
    text = template.render(messages)
    assert text == oracle(source, messages, bos_token="<|im_start|>", eos_token="<|im_end|>")
    assert text.endswith("<|im_start|>assistant\n")


def test_blocks_filters_and_generation_marks_render_as_transformers_does() -> None:
    template = ChatTemplate(CHATTY, special_tokens={"bos_token": "<s>"})
    assert template.render(MESSAGES) == oracle(CHATTY, MESSAGES, bos_token="<s>")


def test_the_date_comes_from_the_clock() -> None:
    template = ChatTemplate(
        "{{ strftime_now('%d %b %Y') }}", special_tokens={}, now=lambda: datetime(2024, 7, 26, 12, 0)
    )
    assert template.render(MESSAGES) == "26 Jul 2024"


def test_what_a_template_raises_is_the_callers_error() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", special_tokens={})
    with pytest.raises(InvalidInputError, match="roles must alternate"):
        template.render(MESSAGES)


def test_a_template_cannot_reach_outside_its_sandbox() -> None:
    template = ChatTemplate("{{ messages.__class__.__mro__ }}", special_tokens={})
    with pytest.raises(InvalidInputError, match="unsafe"):
        template.render(MESSAGES)


def test_a_template_that_does_not_parse_names_its_file_and_line(tmp_path: Path) -> None:
    for name, content in (
        ("tokenizer_config.json", json.dumps({"chat_template": "\n{% for %}"})),
        ("chat_template.jinja", "\n{{ x | nofilter }}"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(ModelLoadError, match=rf"the chat template in \S+/{name} does not parse: line 2: "):
            ChatTemplate.load(str(tmp_path))


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1 / 0 }}",
        "{{ range(10 ** 9) }}",
        "{{ '{} {}'.format(1) }}",
        "{{ messages[0].nothing.more }}",
        "{% for a in 5 %}{% endfor %}",
        "{{ 5 | dictsort }}",
        "{{ cycler() }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    ],
)
def test_a_template_that_fails_is_named_by_its_file(tmp_path: Path, source: str) -> None:
    (tmp_path / "chat_template.jinja").write_text(source)
    template = ChatTemplate.load(str(tmp_path))
    assert template is not None
    with pytest.raises(InvalidInputError, match=r"chat template \(chat_template\.jinja\) fails .*change them, or mend"):
        template.render(MESSAGES)


def test_a_damaged_template_is_refused_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": [{"name": "default"}]}))
    with pytest.raises(ModelLoadError, match=r"tokenizer_config\.json is damaged"):
        ChatTemplate.load(str(tmp_path))
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelLoadError, match=r"chat_template\.jinja is damaged"):
        ChatTemplate.load(str(tmp_path))


def test_templates_in_the_tokenizers_config_are_found(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ eos_token }}yes"}]
    config = {"chat_template": named, "eos_token": {"content": "</s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    template = ChatTemplate.load(str(tmp_path))
    assert template is not None
    assert template.render(MESSAGES) == "</s>yes"


def test_a_model_without_a_template_has_none(tmp_path: Path) -> None:
    assert ChatTemplate.load(str(tmp_path)) is None
