"""The tutorial, command by command, in an empty folder with a stack of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.docs.console_blocks import Command, commands, environment, missing, run_and_compare

ROOT = Path(__file__).parents[2]
TUTORIAL = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")


def test_missing_output_lines_are_detected() -> None:
    page = "```console\n$ one\na …\nb 12 s\n$ two <<'X'\ntext\nX\nc\n```\n"
    assert commands(page) == [Command("one", ("a …", "b 12 s")), Command("two <<'X'\ntext\nX", ("c",))]
    assert missing(("a …", "b 12 s"), "a something\nand\n  b   7.5 s") is None
    assert missing(("a …", "b 12 s"), "b 7 s\na something") == "b 12 s"
    assert missing(("a",), "") == "a"


@pytest.mark.slow
def test_the_tutorial_prints_what_the_page_shows(tmp_path: Path) -> None:
    steps = commands(TUTORIAL)
    assert len(steps) >= 15
    programs = Path(sys.executable).parent
    env = environment(PATH=f"{programs}{os.pathsep}{os.environ['PATH']}")
    run_and_compare(steps, tmp_path, env, programs / "saga", timeout=300)
