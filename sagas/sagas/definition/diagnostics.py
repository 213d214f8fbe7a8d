"""Diagnostics of definitions: their positions and messages, collected file by file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from sagas.definition.diagnostic_codes import DIAGNOSTIC_CODES, Severity
from sagas.errors import nearest


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding. ``line`` and ``column`` count from 1; ``code`` is a key of :data:`DIAGNOSTIC_CODES`."""

    file: str
    line: int
    column: int
    code: str
    severity: Severity
    message: str
    help: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "help": self.help,
        }

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column} {self.code} {self.severity} {self.message}"


class Positioned(Protocol):
    """Anything with a position in the file."""

    @property
    def line(self) -> int: ...

    @property
    def column(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Position:
    """A position without a node."""

    line: int
    column: int


class Report:
    """Collects the diagnostics of one file. Identical findings at the same position are kept once."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._diagnostics: dict[tuple[int, int, str, str], Diagnostic] = {}

    def add(self, code: str, position: Positioned, message: str, help: str | None = None) -> None:
        """Record a finding. ``help`` defaults to the help of the code."""
        entry = DIAGNOSTIC_CODES[code]
        diagnostic = Diagnostic(
            self.file,
            position.line,
            position.column,
            code,
            entry.severity,
            message,
            entry.help if help is None else help,
        )
        self._diagnostics.setdefault((position.line, position.column, code, message), diagnostic)

    def has(self, *codes: str) -> bool:
        """True if there is a finding with one of the codes."""
        return any(diagnostic.code in codes for diagnostic in self._diagnostics.values())

    def withdraw(self, *codes: str) -> None:
        """Remove the findings with these codes, which only follow from another one."""
        self._diagnostics = {
            place: diagnostic for place, diagnostic in self._diagnostics.items() if diagnostic.code not in codes
        }

    def retain(self, is_kept: Callable[[Diagnostic], bool]) -> None:
        """Remove the findings that are not to be kept."""
        self._diagnostics = {
            place: diagnostic for place, diagnostic in self._diagnostics.items() if is_kept(diagnostic)
        }

    @property
    def failed(self) -> bool:
        """True if at least one finding is an error."""
        return any(diagnostic.severity == "error" for diagnostic in self._diagnostics.values())

    @property
    def diagnostics(self) -> list[Diagnostic]:
        """All findings in file order."""
        return sorted(self._diagnostics.values(), key=lambda d: (d.line, d.column, d.code))


def suggestion_help(name: str, names: Iterable[str], otherwise: str = "") -> str:
    """A help text that proposes the closest known name; ``otherwise`` if none is close."""
    close = nearest(name, names)
    return f"did you mean `{close}`?" if close else otherwise


def with_warnings_as_errors(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Return the findings with every warning changed to an error (`--strict`)."""
    return [Diagnostic(d.file, d.line, d.column, d.code, "error", d.message, d.help) for d in diagnostics]
