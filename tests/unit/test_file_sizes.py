"""A Python file holds one concept, and so it is short."""

from __future__ import annotations

from tests.unit.test_docstring_openings import CODE
from tests.unit.test_message_form import ROOT

MAX_LINES = 500


def test_no_python_file_is_long() -> None:
    lengths = {
        str(file.relative_to(ROOT)): len(file.read_text(encoding="utf-8").splitlines())
        for folder in CODE
        for file in (ROOT / folder).rglob("*.py")
    }

    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}
