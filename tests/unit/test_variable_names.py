"""A variable is named after what it holds."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.unit.test_docstring_openings import READ_BY_STRANGERS
from tests.unit.test_message_form import ROOT

EMPTY_NAMES = {"one", "found", "it"}
"""Names that fit any value."""


def bindings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The lines and names of all variables and parameters."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node.lineno, name


def test_no_variable_has_a_name_that_fits_anything() -> None:
    files = [file for folder in READ_BY_STRANGERS for file in (ROOT / folder).rglob("*.py")]
    names = [
        f"{file.relative_to(ROOT)}:{line}: {name}"
        for file in [*files, *(ROOT / "tests").rglob("conftest.py")]
        for line, name in bindings(ast.parse(file.read_text(encoding="utf-8")))
        if name in EMPTY_NAMES
    ]

    assert names == []
