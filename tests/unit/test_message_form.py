"""Error messages and their help are one sentence: lower case, without a full stop."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sagas.definition.diagnostic_codes import DIAGNOSTIC_CODES

ROOMS = (
    "sagas/sagas",
    "activities/saga_activities",
    "spark_steps/saga_spark",
    "workers/saga_workers",
    "cli/saga_cli",
)

PROPER_NAMES = {
    "Kafka",
    "MariaDB",
    "MySQL",
    "Parquet",
    "PostgreSQL",
    "PySpark",
    "Python",
    "Spark",
    "SQLite",
    "Standard",
    "Temporal",
    "Temporal's",
}

ROOT = Path(__file__).parents[2]


def literal(node: ast.expr) -> str | None:
    """The text of a string literal, with ``{}`` for each placeholder; None if it is not a literal."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)
        case _:
            return None


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each message that a module raises, and of each ``help``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for value in node.exc.args[:1]:
                if (text := literal(value)) is not None:
                    yield value.lineno, text
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg != "help" or (text := literal(keyword.value)) is None:
                    continue
                # The help of a Typer application is prose for --help, not the help of an error.
                if not ast.unparse(node.func).endswith("Typer"):
                    yield keyword.value.lineno, text


def mistake(text: str) -> str | None:
    """The mistake in the form of a message; None if there is none."""
    if re.search(r"[^.…]\.$", text):
        return "it ends with a full stop"
    word = re.match(r"[A-Z][a-z]\S*", text)
    if word is not None and word.group().rstrip(",:") not in PROPER_NAMES:
        return "it starts in upper case"
    return None


@pytest.mark.parametrize("room", ROOMS)
def test_messages_are_lower_case_without_a_full_stop(room: str) -> None:
    mistakes = [
        f"{file.relative_to(ROOT)}:{line}: {wrong}: {text}"
        for file in sorted((ROOT / room).rglob("*.py"))
        for line, text in messages(file.read_text(encoding="utf-8"))
        if (wrong := mistake(text)) is not None
    ]
    assert not mistakes, "\n".join(mistakes)


@pytest.mark.parametrize("code", DIAGNOSTIC_CODES)
def test_diagnostics_are_lower_case_without_a_full_stop(code: str) -> None:
    entry = DIAGNOSTIC_CODES[code]
    assert (mistake(entry.title), mistake(entry.help)) == (None, None)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("the topic orders does not exist; create it with saga setup", None),
        ("Kafka, topic {}: no record arrived within {} s", None),
        ("SELECT … INTO is refused in a guarded step", None),
        ("There is no topic orders", "it starts in upper case"),
        ("there is no topic {}.", "it ends with a full stop"),
    ],
)
def test_the_form_of_a_message(text: str, wrong: str | None) -> None:
    assert mistake(text) == wrong
