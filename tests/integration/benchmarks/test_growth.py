"""The benchmark of the growth runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow  # a benchmark
def test_the_growth_is_measured() -> None:
    command = [sys.executable, "-m", "benchmarks.growth", "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "the purge, for each saga" in done.stdout
