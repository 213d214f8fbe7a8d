"""A test that hangs fails, and its report says where its tasks wait."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

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


def test_a_hanging_test_fails_and_the_next_one_runs(tmp_path: Path) -> None:
    shutil.copyfile(ROOT / "pyproject.toml", tmp_path / "pyproject.toml")
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_runtest_makereport\n")
    (tmp_path / "test_two.py").write_text(HANGING)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_two.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "1 failed, 1 passed" in ended.stdout, ended.stdout + ended.stderr
    assert "a task that hangs:" in ended.stdout
    assert "in waits" in ended.stdout
