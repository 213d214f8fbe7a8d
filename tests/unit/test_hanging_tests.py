"""A test that hangs fails, and its report says where its tasks wait."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HANGING = """
import asyncio
import pytest

async def waits():
    await asyncio.Event().wait()

@pytest.mark.timeout(0.5)
async def test_hangs():
    await asyncio.create_task(waits(), name="a task that hangs")

async def test_passes():
    await asyncio.sleep(0)
"""


IN_C = """
def test_hangs():
    sum(range(10**12))

def test_passes():
    pass
"""


def run_tests(folder: Path, text: str, *options: str) -> str:
    """Output of pytest for these tests, with the hooks and settings of the project."""
    shutil.copyfile(ROOT / "pyproject.toml", folder / "pyproject.toml")
    hooks = "pytest_runtest_makereport, pytest_xdist_make_scheduler"
    (folder / "conftest.py").write_text(f"from tests.conftest import {hooks}\n")
    (folder / "test_two.py").write_text(text)
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "test_two.py"]
    ended = subprocess.run(
        words, cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120
    )
    return ended.stdout + ended.stderr


def test_a_hanging_test_fails_and_the_next_one_runs(tmp_path: Path) -> None:
    printed = run_tests(tmp_path, HANGING)
    assert "1 failed, 1 passed" in printed, printed
    assert "a task that hangs:" in printed
    assert "in waits" in printed


@pytest.mark.slow
def test_a_test_that_hangs_in_c_ends_its_process_once(tmp_path: Path) -> None:
    """With the options of `make test`: no signal is handled until the call returns."""
    exits = ("-o", "faulthandler_timeout=2", "-o", "faulthandler_exit_on_timeout=true")
    printed = run_tests(tmp_path, IN_C, "-n", "2", "--dist", "loadfile", *exits)
    assert "1 failed, 1 passed" in printed, printed
    assert "sum(range" in printed or "in test_hangs" in printed
