"""A docstring has a subject: it is read without the line above it."""

from __future__ import annotations

import ast
import re

from tests.unit.test_message_form import ROOMS, ROOT

CODE = (*ROOMS, "benchmarks", "definitions", "tests")
"""Folders of Python code."""

DEPENDENT_OPENING = re.compile(
    r"(Of|Its|Those|These|That|This|It|They|Their|None|Only|The same|What|Whether|Who|Whose|Which|Where|As"
    r"|Also|And|Not|Such)\b"
)

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def test_no_docstring_opens_with_a_word_that_needs_the_line_above_it() -> None:
    openings = [
        f"{path.relative_to(ROOT)}:{node.body[0].lineno}: {docstring[:80]}"
        for folder in CODE
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, DOCUMENTED)
        and (docstring := ast.get_docstring(node)) is not None
        and DEPENDENT_OPENING.match(docstring)
    ]

    assert openings == []
