"""Diagnostics for people, programs, GitHub and SARIF viewers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from sagas.definition.catalogue import CATALOGUE
from sagas.definition.diagnostics import Diagnostic, Format

SARIF_VERSION = "2.1.0"


def format_diagnostics(diagnostics: Sequence[Diagnostic], format: Format = "text") -> str:
    """All findings in one of the formats of `saga validate --format`."""
    return _FORMATS[format](diagnostics)


def _text(diagnostics: Sequence[Diagnostic]) -> str:
    lines = []
    for diagnostic in diagnostics:
        lines.append(str(diagnostic))
        if diagnostic.help:
            lines.append(f"    {diagnostic.help}")
    return "\n".join(lines)


def _json(diagnostics: Sequence[Diagnostic]) -> str:
    return json.dumps([diagnostic.to_json() for diagnostic in diagnostics], ensure_ascii=False, indent=2)


def _github(diagnostics: Sequence[Diagnostic]) -> str:
    return "\n".join(
        f"::{one.severity} file={_property(one.file)},line={one.line},col={one.column},title={one.code}::"
        + _data(f"{one.message}\n{one.help}".strip())
        for one in diagnostics
    )


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _sarif(diagnostics: Sequence[Diagnostic]) -> str:
    codes = sorted({one.code for one in diagnostics})
    rules = [
        {
            "id": code,
            "shortDescription": {"text": CATALOGUE[code].title},
            "help": {"text": CATALOGUE[code].help},
            "defaultConfiguration": {"level": CATALOGUE[code].severity},
        }
        for code in codes
    ]
    document = {
        "version": SARIF_VERSION,
        "runs": [
            {
                "tool": {"driver": {"name": "saga validate", "rules": rules}},
                "columnKind": "unicodeCodePoints",
                "results": [_sarif_result(one, codes.index(one.code)) for one in diagnostics],
            }
        ],
    }
    return json.dumps(document, ensure_ascii=False, indent=2)


def _sarif_result(one: Diagnostic, rule: int) -> dict[str, Any]:
    return {
        "ruleId": one.code,
        "ruleIndex": rule,
        "level": one.severity,
        "message": {"text": f"{one.message}. {one.help}".strip()},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": one.file.replace("\\", "/")},
                    "region": {"startLine": one.line, "startColumn": one.column},
                }
            }
        ],
    }


_FORMATS: dict[str, Callable[[Sequence[Diagnostic]], str]] = {
    "text": _text,
    "json": _json,
    "github": _github,
    "sarif": _sarif,
}
