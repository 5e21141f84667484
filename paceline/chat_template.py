"""The model's chat template, rendered as Hugging Face's libraries render it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.sandbox
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from paceline.chat_roles import roles_of
from paceline.errors import InvalidInputError, ModelLoadError

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# What a template raises: Jinja itself, Python on its values, and Jinja's filters on values of another kind.
_FAILURES = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RuntimeError,
)


class ChatTemplate:
    """Renders messages to a prompt with the assistant's turn opened, in a sandbox.

    Raises ModelLoadError for a template that is no Jinja. file: where it comes from, for messages.
    """

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str],
        file: Path | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._name = file.name if file else "template"  # without its folder: callers see it, too
        self._special_tokens = dict(special_tokens)
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationBlock]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
        try:
            tree = environment.parse(source)
            self.roles = roles_of(tree)  # that a message may have
            self._template = environment.from_string(tree)
            # In place of Jinja's chain of two: through that went half of a render's time (17 of 35 us on an AMD EPYC).
            self._template.globals = dict(self._template.globals)
        except jinja2.TemplateSyntaxError as error:
            where = f" in {file}" if file else ""
            what = f"line {error.lineno}: {error.message}"
            raise ModelLoadError(f"the chat template{where} does not parse: {what}; mend or remove it") from error

    @classmethod
    def load(cls, model_path: str) -> ChatTemplate | None:
        """From chat_template.jinja or tokenizer_config.json; None where the model has none. Raises ModelLoadError."""
        path = Path(model_path)
        folder = path.parent if path.is_file() else path
        config = _read_json(folder / "tokenizer_config.json")
        own = folder / "chat_template.jinja"
        file = own if own.is_file() else folder / "tokenizer_config.json"
        try:
            source = own.read_text(encoding="utf-8") if file == own else _default_of(config.get("chat_template"))
        except (KeyError, AttributeError, UnicodeDecodeError) as error:
            raise ModelLoadError(f"the chat template in {file} is damaged ({error!r}); mend or remove it") from error
        if source is None:
            return None
        special_tokens = {name: _content(config[name]) for name in _SPECIAL_TOKENS if config.get(name)}
        return cls(source, special_tokens=special_tokens, file=file)

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt's text, special tokens spelt out. Raises InvalidInputError where the template refuses or fails."""
        try:
            return self._template.render(
                messages=messages, tools=None, documents=None, add_generation_prompt=True, **self._special_tokens
            )
        except _RefusalError as error:
            raise InvalidInputError(f"chat does not fit the model's template: {error}; change its messages") from error
        except _FAILURES as error:
            raise InvalidInputError(
                f"the model's chat template ({self._name}) fails with these messages: {error}; change them, or mend it"
            ) from error


class _RefusalError(jinja2.TemplateRuntimeError):
    """The template's own word on messages that it does not take."""


class _GenerationBlock(Extension):
    """{% generation %}...{% endgeneration %} marks the assistant's words for training; here it is its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise _RefusalError(message)


def _to_json(value: Any, **options: Any) -> str:
    """Unlike Jinja's own filter, without HTML escapes; options are those of json.dumps."""
    return json.dumps(value, **{"ensure_ascii": False, **options})


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelLoadError(f"{path} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} must hold a JSON object, not {type(value).__name__}")
    return value


def _default_of(template: Any) -> str | None:
    """A template, or of several named ones the default."""
    if isinstance(template, list):
        return next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    return template if isinstance(template, str) else None


def _content(token: Any) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)
