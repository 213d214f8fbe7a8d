"""Output formats of findings in files: text, JSON, GitHub annotations and SARIF."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote

from sagas.definition.diagnostic_codes import DIAGNOSTIC_CODES, DiagnosticCode
from sagas.definition.diagnostics import Diagnostic
from sagas.text.exact_json import readable_json

Format = Literal["text", "json", "github", "sarif"]

SARIF_VERSION = "2.1.0"


def format_diagnostics(diagnostics: Sequence[Diagnostic], format: Format = "text") -> str:
    """All findings in a format of `saga validate --format`."""
    return _FORMATS[format](diagnostics)


def _as_text(diagnostics: Sequence[Diagnostic]) -> str:
    lines = []
    for diagnostic in diagnostics:
        lines.append(str(diagnostic))
        if diagnostic.help:
            lines.append(f"    {diagnostic.help}")
    return "\n".join(lines)


def _as_json(diagnostics: Sequence[Diagnostic]) -> str:
    return readable_json([diagnostic.to_json() for diagnostic in diagnostics], indent=2)


def _as_github(diagnostics: Sequence[Diagnostic]) -> str:
    """Workflow commands, which GitHub shows at the lines of a pull request."""
    return "\n".join(map(_github_command, diagnostics))


def _github_command(diagnostic: Diagnostic) -> str:
    file, code = _escaped_property(diagnostic.file), diagnostic.code
    place = f"file={file},line={diagnostic.line},col={diagnostic.column},title={code}"
    text = _escaped_data(f"{diagnostic.message}\n{diagnostic.help}".strip())
    command = "notice" if diagnostic.severity == "note" else diagnostic.severity
    return f"::{command} {place}::{text}"


def _escaped_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escaped_property(text: str) -> str:
    return _escaped_data(text).replace(":", "%3A").replace(",", "%2C")


def _as_sarif(diagnostics: Sequence[Diagnostic]) -> str:
    return sarif_document("saga validate", DIAGNOSTIC_CODES, diagnostics)


def sarif_document(tool: str, described: Mapping[str, DiagnosticCode], diagnostics: Sequence[Diagnostic]) -> str:
    """The findings of a command as a SARIF log; ``described`` has their codes."""
    codes = sorted({diagnostic.code for diagnostic in diagnostics})
    rules = [
        {
            "id": code,
            "shortDescription": {"text": described[code].title},
            "help": {"text": described[code].help},
            "defaultConfiguration": {"level": described[code].severity},
        }
        for code in codes
    ]
    document = {
        "version": SARIF_VERSION,
        "runs": [
            {
                "tool": {"driver": {"name": tool, "rules": rules}},
                "columnKind": "unicodeCodePoints",
                "results": [_sarif_result(diagnostic, codes.index(diagnostic.code)) for diagnostic in diagnostics],
            }
        ],
    }
    return readable_json(document, indent=2)


def _sarif_result(diagnostic: Diagnostic, rule: int) -> dict[str, Any]:
    return {
        "ruleId": diagnostic.code,
        "ruleIndex": rule,
        "level": diagnostic.severity,
        "message": {"text": f"{diagnostic.message}; {diagnostic.help}".strip("; ")},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": quote(diagnostic.file.replace("\\", "/"))},
                    "region": {"startLine": diagnostic.line, "startColumn": diagnostic.column},
                }
            }
        ],
    }


_FORMATS: dict[str, Callable[[Sequence[Diagnostic]], str]] = {
    "text": _as_text,
    "json": _as_json,
    "github": _as_github,
    "sarif": _as_sarif,
}
