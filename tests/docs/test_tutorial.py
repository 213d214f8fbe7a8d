"""The tutorial, command by command, in an empty folder with a stack of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.console_blocks import Command, commands, missing

ROOT = Path(__file__).parents[2]
TUTORIAL = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
MARK = "--- this was command "


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
    script = "\n".join(f"{step.text}\necho '{MARK}'{number}" for number, step in enumerate(steps))
    script = script.replace(f"echo '{MARK}'", f"SAGA_LAST=$?; echo '{MARK}'").replace(
        'echo "exit code $?"', 'echo "exit code $SAGA_LAST"'
    )
    programs = Path(sys.executable).parent
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "SAGA_"))}
    env = {**kept, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "160", "NO_COLOR": "1"}
    try:
        done = subprocess.run(
            ["bash", "-c", f"exec 2>&1\n{script}"],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    finally:
        if (tmp_path / "shop").is_dir():
            subprocess.run([programs / "saga", "dev", "down"], cwd=tmp_path / "shop", env=env, check=False)
    rest, printed = done.stdout, []
    for number in range(len(steps)):
        one, mark, rest = rest.partition(f"{MARK}{number}\n")
        assert mark, f"{steps[number].text!r} did not end:\n{one}"
        printed.append(one)
    for step, output in zip(steps, printed, strict=True):
        lost = missing(step.prints, output)
        assert lost is None, f"$ {step.text}\nshould print {lost!r}, but printed:\n{output}"
