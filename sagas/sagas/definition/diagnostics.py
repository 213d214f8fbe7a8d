"""What the checks tell the author of a definition: where, what, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from sagas.definition.catalogue import CATALOGUE, Severity

Format = Literal["text", "json", "github", "sarif"]


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding. ``line`` and ``column`` count from 1; ``code`` is a key of the catalogue."""

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


class Place(Protocol):
    """Anything with a position in the file."""

    @property
    def line(self) -> int: ...

    @property
    def column(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Mark:
    """A bare position, where there is no node to point at."""

    line: int
    column: int


class Report:
    """Collects the diagnostics of one file. A finding made twice at one place is kept once."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._found: dict[tuple[int, int, str, str], Diagnostic] = {}

    def add(self, code: str, place: Place, message: str, help: str | None = None) -> None:
        """Record a finding. ``help`` defaults to the catalogue's advice for the code."""
        entry = CATALOGUE[code]
        diagnostic = Diagnostic(
            self.file,
            place.line,
            place.column,
            code,
            entry.severity,
            message,
            entry.help if help is None else help,
        )
        self._found.setdefault((place.line, place.column, code, message), diagnostic)

    @property
    def failed(self) -> bool:
        """True when at least one finding is an error."""
        return any(diagnostic.severity == "error" for diagnostic in self._found.values())

    @property
    def diagnostics(self) -> list[Diagnostic]:
        """All findings in the order of the file."""
        return sorted(self._found.values(), key=lambda d: (d.line, d.column, d.code))


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """A help sentence that names the closest known word, or ``otherwise`` when none is close."""
    close = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.6)
    return f"Did you mean `{close[0]}`?" if close else otherwise


def strict(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """The same findings with every warning turned into an error (`--strict`)."""
    return [Diagnostic(d.file, d.line, d.column, d.code, "error", d.message, d.help) for d in diagnostics]
