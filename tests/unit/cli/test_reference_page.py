"""docs/reference/cli.md matches the commands."""

from __future__ import annotations

from tests.unit.cli.reference_page import PAGE, render


def test_the_reference_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run `python -m tests.unit.cli.reference_page`"
