"""The types of keys of saga.toml: what may be written, and the refusal of anything else.

Each is the annotation of a field of a :class:`~sagas.settings.table.Table`. A value that is read from a file has the
form of its key before any part of the engine sees it, so a mistake is one sentence wherever it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from sagas.definition.times import DURATION_PATTERN, parse_duration
from sagas.settings.secrets import Secret, parse_secret
from sagas.settings.wrong_setting import WrongSetting
from sagas.text.exact_json import encode_json

Check = Callable[[str, str], object]
"""Raises WrongSetting for a text of another form, as the functions of :mod:`sagas.settings.addresses` do."""


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """The values that may be written for a key. ``type`` names them in the reference page, ``description`` in messages.

    ``read`` makes the value of what ``allows`` and, for a text, ``check`` accept; both raise WrongSetting for a setting
    without a name.
    ``json_schema`` is that of what is written; empty: that of the annotated type. In a variable of the environment the
    value of a key with ``is_text`` is text, even if it looks like a number. ``tables`` are the models of the table, or
    tables, that the key holds; ``is_named``: below names that the project chooses.
    """

    type: str
    allows: Callable[[Any], bool]
    description: str
    read: Callable[[Any], Any] = lambda written: written
    json_schema: Mapping[str, Any] = field(default_factory=dict)
    check: Check | None = None
    is_text: bool = False
    tables: tuple[type[BaseModel], ...] = ()
    is_named: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_before_validator_function(self._read, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return dict(self.json_schema) or handler(schema)

    def _read(self, written: Any, info: ValidationInfo) -> Any:
        if info.context is None:  # a value of the code
            return written
        if not self.allows(written):
            raise WrongSetting("", f"must be {self.description}", shows_example=True)
        if self.check is not None and isinstance(written, str):
            self.check("", written)
        return self.read(written)


@dataclass(frozen=True, slots=True)
class Variable:
    """A further variable of the environment that sets a key, before the file and after ``SAGA_…__…``."""

    name: str


def to_toml(value: Any) -> str:
    """A value on one line of TOML."""
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_toml_key(key)} = {to_toml(item)}" for key, item in value.items())
        return f"{{ {pairs} }}" if value else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(to_toml, value))}]"
    return encode_json(value).decode()


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[\w-]+", key, re.ASCII) else to_toml(key)


def _is_text(written: Any) -> bool:
    return isinstance(written, str) and bool(written.strip()) and "\0" not in written


def _is_texts(written: Any) -> bool:
    return isinstance(written, list) and all(_is_text(item) for item in written)


def is_table(written: Any) -> bool:
    return isinstance(written, Mapping)


def _is_number(written: Any) -> bool:
    return isinstance(written, int | Decimal) and not isinstance(written, bool) and Decimal(written).is_finite()


_LONGEST = 3650 * 86_400.0


def duration(least: float = 0.0) -> Form:
    """A number with a unit, as seconds; ``least`` is the minimum."""

    def read(written: str) -> float:
        try:
            seconds = parse_duration(written)
        except ValueError as error:
            raise WrongSetting("", f": {error}; write a number with a unit, such as 60s or 7d") from None
        if seconds > _LONGEST:
            raise WrongSetting("", "is longer than ten years; write a number with a unit, such as 60s or 7d")
        if seconds < least:
            raise WrongSetting("", f"must be at least {least:.0f}s")
        return seconds

    schema = {"type": "string", "pattern": DURATION_PATTERN}
    return Form("duration", _is_text, "a string such as 30s or 7d", read, schema, is_text=True)


def count(most: int = 1_000_000_000) -> Form:
    """A whole number from 1 on; ``most`` is the maximum."""

    def allows(written: Any) -> bool:
        return isinstance(written, int) and not isinstance(written, bool) and 1 <= written <= most

    schema = {"type": "integer", "minimum": 1, "maximum": most}
    return Form("integer", allows, f"a whole number from 1 to {most}", json_schema=schema)


def text(check: Check | None = None) -> Form:
    """A text that ``check`` accepts."""
    return Form("string", _is_text, "a string", check=check, json_schema=_TEXT_SCHEMA, is_text=True)


def text_or_secret(check: Check | None = None) -> Form:
    """A text that ``check`` accepts, or a reference to a secret."""
    return Form(
        "string or secret",
        lambda written: _is_text(written) or is_table(written),
        'a string, {env = "NAME"} or {file = "path"}',
        lambda written: _read_secret(written) if is_table(written) else written,
        {"anyOf": [_TEXT_SCHEMA, _SECRET_SCHEMA]},
        check=check,
        is_text=True,
    )


def one_of(*words: str) -> Form:
    """One of these words."""

    def check(setting: str, written: str) -> None:
        if written not in words:
            raise WrongSetting(setting, f"must be {' or '.join(to_toml(word) for word in words)}, not {written}")

    return replace(text(check), json_schema={"enum": list(words)})


def properties(accept: Callable[[str, str | Secret], object], *, secrets: bool = False, dots: str = ".") -> Form:
    """Properties of a library: dots in their names become nested tables in TOML.

    ``accept`` raises WrongSetting for a property that cannot be set. ``secrets``: a value may be a reference. ``dots``
    are the characters that stand for a dot.
    """

    def flattened(written: Mapping[str, Any], above: str) -> Iterator[tuple[str, str | Secret]]:
        for key, value in written.items():
            name = above + "".join("." if letter in dots else letter for letter in key)
            match value:
                case bool():
                    yield name, str(value).lower()
                case str() | int() | Decimal():
                    yield name, str(value)
                case Mapping() if secrets and set(value) <= {"env", "file"}:
                    yield name, parse_secret(value, name)
                case Mapping():
                    yield from flattened(value, f"{name}.")
                case _:
                    raise WrongSetting(name, "must be a string, a number, true or false")

    def read(written: Mapping[str, Any]) -> dict[str, str | Secret]:
        values = {}
        for name, value in flattened(written, ""):
            accept(name, value)
            values[name] = value
        return values

    return Form("table", is_table, "a table", read, {"type": "object"})


def _read_secret(written: Mapping[str, Any]) -> Secret:
    return parse_secret(written, "")


_TEXT_SCHEMA = {"type": "string", "minLength": 1}
_SECRET_SCHEMA = {
    "type": "object",
    "properties": {"env": _TEXT_SCHEMA, "file": _TEXT_SCHEMA},
    "additionalProperties": False,
    "minProperties": 1,
    "maxProperties": 1,
}

SECRET = Form(
    "secret", is_table, 'a reference, {env = "NAME"} or {file = "path"}', _read_secret, json_schema=_SECRET_SCHEMA
)
FLAG = Form("boolean", lambda written: isinstance(written, bool), "true or false")
TEXTS = Form(
    "list of strings",
    _is_texts,
    "a list of strings",
    json_schema={"type": "array", "items": _TEXT_SCHEMA},
)
NAMED_TEXTS = Form(
    "table",
    lambda written: is_table(written) and all(_is_texts(texts) for texts in written.values()),
    "a table of lists of strings",
    json_schema={"type": "object", "additionalProperties": TEXTS.json_schema},
)
TABLE = Form("table", is_table, "a table", json_schema={"type": "object"})
NAMES = Form(
    "string or list",
    lambda written: _is_text(written) or _is_texts(written),
    "a string or a list of strings",
    lambda written: (written,) if isinstance(written, str) else written,
    {"anyOf": [_TEXT_SCHEMA, TEXTS.json_schema]},
)
NUMBER = Form(
    "string or number",
    lambda written: _is_number(written) or _is_text(written),
    "a string or a number",
    json_schema={"type": ["string", "number"]},
)
Text = Annotated[str, text()]
OptionalText = Annotated[str | None, text()]
Flag = Annotated[bool, FLAG]
Count = Annotated[int, count()]
Seconds = Annotated[float, duration()]
Texts = Annotated[tuple[str, ...], TEXTS]
Names = Annotated[tuple[str, ...], NAMES]
TextOrSecret = Annotated[str | Secret | None, text_or_secret()]
