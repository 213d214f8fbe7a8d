"""A docstring has a subject: it is read without the line above it. Texts are plain English."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator

import pytest

from tests.unit.test_message_form import ROOMS, ROOT

CODE = (*ROOMS, "benchmarks", "definitions", "tests")
"""Folders of Python code."""

DEPENDENT_OPENING = re.compile(
    r"(Of|Its|Those|These|That|This|It|They|Their|None|Only|The same|What|Whether|Who|Whose|Which|Where|As"
    r"|Also|And|Not|Such)\b"
)

STRING_WITH_SUCH_AN_OPENING = re.compile(rf"[\"']\s*{DEPENDENT_OPENING.pattern}")
"""A file without one need not be parsed, which takes most of the time."""

FOREIGN_FORMS = re.compile(
    r"(?<!there )\b(is|are|was|were) no (?!longer|better|more|less|other|such|reason)[`a-zA-Z{]"  # is not a …
    r"|\b(is|are) told (what|which|whether|if|when)\b"  # is called with …
    r"|\b(has|have|had) met\b"  # ran into
    r"|, too[.;:\"](?!\w)"  # also
    r"|\bsome (few|hundred|seconds|minutes)\b"  # a few
    r"|\b(?-i:None): (it|they|there|nobody)\b",  # None if it …
    re.IGNORECASE,
)
"""Forms that come from another language, with the plain one behind each. A text that is split within one passes."""

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def test_no_docstring_opens_with_a_word_that_needs_the_line_above_it() -> None:
    openings = [
        f"{path.relative_to(ROOT)}:{line}: {docstring[:80]}"
        for folder in CODE
        for path in (ROOT / folder).rglob("*.py")
        if STRING_WITH_SUCH_AN_OPENING.search(source := path.read_text(encoding="utf-8"))
        for line, docstring in _docstrings(source, with_values=folder in ROOMS)
        if DEPENDENT_OPENING.match(docstring)
    ]

    assert openings == []


def _docstrings(source: str, *, with_values: bool) -> Iterator[tuple[int, str]]:
    """The docstrings of a file with their lines. ``with_values``: also those of constants and attributes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and (docstring := ast.get_docstring(node)) is not None:
            yield node.body[0].lineno, docstring
        body = node.body if isinstance(node, DOCUMENTED) else []
        for before, statement in itertools.pairwise(body):
            if with_values and isinstance(before, ast.Assign | ast.AnnAssign):
                match statement:
                    case ast.Expr(ast.Constant(str(text))):
                        yield statement.lineno, text
                    case _:
                        pass


def test_no_text_has_an_idiom_of_another_language() -> None:
    idioms = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for folder in ROOMS
        for path in (ROOT / folder).rglob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if FOREIGN_FORMS.search(line)
    ]

    assert idioms == []


@pytest.mark.parametrize(
    ("text", "is_foreign"),
    [
        ("the port is no number", True),
        ("there is no topic orders", False),
        ("the topic is no longer there", False),
        ("its statement is read, too.", True),
        ("there are too many", False),
        ("``warn`` is told what is wrong", True),
        ("an insert that has met a row", True),
        ("it lags behind by some seconds", True),
    ],
)
def test_the_idioms(text: str, is_foreign: bool) -> None:
    assert (FOREIGN_FORMS.search(text) is not None) == is_foreign
