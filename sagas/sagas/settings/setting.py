"""The types of keys of saga.toml, and the refusal of anything else.

Every value has the type of its row before any part of the engine sees it, so a mistake is one sentence wherever it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sagas.definition.times import parse_duration
from sagas.errors import UsageError, did_you_mean
from sagas.settings.secrets import parse_secret
from sagas.settings.wrong_setting import WrongSetting
from sagas.text.json_values import json_problem


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and "\0" not in value


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(_is_text(item) for item in value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_number(value: Any) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool) and Decimal(value).is_finite()


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


_FORMS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "string": (_is_text, "a string"),
    "boolean": (lambda value: isinstance(value, bool), "true or false"),
    "integer": (_is_count, "a whole number"),
    "duration": (_is_text, "a string such as 30s or 7d"),
    "table": (_is_table, "a table"),
    "secret": (_is_table, 'a reference, {env = "NAME"} or {file = "path"}'),
    "list of strings": (_is_texts, "a list of strings"),
    "array of tables": (
        lambda value: isinstance(value, list) and all(_is_table(item) for item in value),
        "a list of tables",
    ),
    "boolean or table": (lambda value: isinstance(value, bool) or _is_table(value), "true, false, or a table"),
    "string or boolean": (lambda value: isinstance(value, bool) or _is_text(value), "a string, true or false"),
    "string or number": (lambda value: _is_number(value) or _is_text(value), "a string or a number"),
    "string or secret": (
        lambda value: _is_table(value) or _is_text(value),
        'a string, {env = "NAME"} or {file = "path"}',
    ),
    "string or list": (lambda value: _is_text(value) or _is_texts(value), "a string or a list of strings"),
}
"""Type of a row → which values it allows, and their description in messages."""

_LONGEST = 3650 * 86_400.0

TEXT_TYPES = ("string", "duration", "string or secret", "string or boolean")
"""Types whose value in an environment variable is text, even if it looks like a number."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One key. ``variable`` overrides the file besides ``SAGA_…__…``. A key with ``planned_for`` is refused.

    ``most`` is the maximum of an integer. ``address`` raises WrongSetting for a text that is no address of its kind.
    """

    name: str
    type: str
    meaning: str
    example: str
    default: str = ""
    variable: str = ""
    planned_for: str = ""
    most: int = 1_000_000_000
    address: Callable[[str, str], object] | None = None

    def check(self, value: Any, dotted: str) -> None:
        """Raises WrongSetting if the value has another type or form; ``dotted`` names the setting."""
        if self.planned_for:
            raise WrongSetting(dotted, f"is not in this version; leave it out until {self.planned_for} exists")
        allows, description = _FORMS[self.type]
        if not allows(value) or (self.type == "integer" and value > self.most):
            limits = f" from 1 to {self.most}" if self.type == "integer" else ""
            example = f", such as {self.name} = {self.example}" if self.example else ""
            raise WrongSetting(dotted, f"must be {description}{limits}{example}")
        if "secret" in self.type and _is_table(value):
            parse_secret(value, dotted)
        if self.type == "duration":
            try:
                seconds = parse_duration(value)
            except ValueError as error:
                raise WrongSetting(dotted, f": {error}; write a number with a unit, such as 60s or 7d") from None
            if seconds > _LONGEST:
                raise WrongSetting(dotted, "is longer than ten years; write a number with a unit, such as 60s or 7d")
        if self.address is not None and isinstance(value, str):
            self.address(dotted, value)


@dataclass(frozen=True, slots=True)
class SettingsTable:
    """One table of the file. NAME in ``header`` stands for a name that the project chooses."""

    header: str
    summary: str
    settings: tuple[Setting, ...]
    title: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(setting.name for setting in self.settings)

    def setting(self, name: str) -> Setting | None:
        return next((setting for setting in self.settings if setting.name == name), None)

    def check(self, table: Any, where: str) -> None:
        """``where`` names the table, as in ``[kafka]``.

        Raises:
            UsageError: the table has an unknown key, or a value of another type than its row.
        """
        is_header = where.startswith("[") and where.endswith("]")
        if not isinstance(table, Mapping):
            name = where.strip("[]")
            raise UsageError(f"{name} must be a table: [{name}]")
        for key, value in table.items():
            setting = self.setting(key)
            if setting is None:
                raise UsageError(f"{where}: unknown setting {key}{did_you_mean(key, self.names)}")
            setting.check(value, f"{where.strip('[]')}.{key}" if is_header else f"{where}: {key}")


def check_json(value: Any, setting: str, depth: int = 20) -> None:
    """Raises UsageError for a value that expressions cannot have: a date, infinity, or more than ``depth`` levels."""
    match value:
        case Mapping() | list() if depth == 0:
            raise UsageError(f"{setting} is nested too deeply")
        case Mapping():
            for key, item in value.items():
                check_json(item, f"{setting}.{key}", depth - 1)
        case list():
            for item in value:
                check_json(item, setting, depth - 1)
        case str() | bool() | None:
            pass
        case int() | Decimal() if json_problem(value) is None:
            pass
        case _:
            raise UsageError(f"{setting} is no JSON value; write it as a string")
