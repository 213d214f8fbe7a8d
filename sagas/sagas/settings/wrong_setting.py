"""A setting with a wrong value, and the line of saga.toml that has it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from sagas.errors import UsageError

_LONGEST_FILE = 100_000
_MAX_LINES = 50


class WrongSetting(UsageError, ValueError):
    """A setting is wrong. ``setting`` is its dotted name, which begins the message; a ValueError, as pydantic collects
    them.

    A validator of a table may raise it with an empty name: the table knows the key. ``shows_example``: the table adds
    the example of the key. ``is_table``: ``setting`` is the name of a table, in brackets, which has a key ``unknown``.
    """

    def __init__(
        self,
        setting: str,
        what: str,
        *,
        help: str | None = None,
        shows_example: bool = False,
        is_table: bool = False,
        unknown: str = "",
    ) -> None:
        self.unknown = unknown
        self.setting, self.what, self.shows_example, self.is_table = setting, what, shows_example, is_table
        name = f"[{setting}]" if is_table and setting else setting
        super().__init__(f"{name}{'' if what.startswith(':') else ' '}{what}", help=help)

    def within(self, *path: str) -> WrongSetting:
        """The mistake as seen from the table in which its own table has this path; a label in brackets is complete."""
        name = self.setting
        if not name.startswith("[["):
            name = ".".join(part for part in (*path, name) if part)
        return WrongSetting(
            name,
            self.what,
            help=self.help,
            shows_example=self.shows_example,
            is_table=self.is_table,
            unknown=self.unknown,
        )


def line_of(text: str, setting: str) -> int | None:
    """The line of a TOML file that gives a setting its value, from 1; None if that takes several lines, or too long."""
    if len(text) > _LONGEST_FILE or (path := _path(_tables(text), setting)) is None:
        return None
    lines = text.split("\n")
    naming = [at for at, line in enumerate(lines) if path[-1] in line]
    for at in naming[:_MAX_LINES]:
        before, after = ("\n".join(lines[:end]) for end in (at, at + 1))
        if _path(_tables(after), setting) == path and _path(_tables(before), setting) is None:
            return at + 1
    return None


def _tables(text: str) -> Mapping[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):  # a part of a file may end within a value
        return {}


def _path(table: Mapping[str, Any], setting: str) -> tuple[str, ...] | None:
    """The keys of a dotted name; a key may contain dots itself."""
    if setting in table:
        return (setting,)
    for key, value in table.items():
        if setting.startswith(f"{key}.") and isinstance(value, Mapping):
            inner = _path(value, setting[len(key) + 1 :])
            if inner is not None:
                return (key, *inner)
    return None
