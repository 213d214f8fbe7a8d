"""`--no-tests-after`, as `.ci/run` gives it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).with_name("test_sampling.py")


def test_no_test_begins_after_that_time_and_the_run_says_so() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(TESTS), "--no-tests-after=1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "tests were NOT run" in done.stdout
    assert " passed" not in done.stdout
