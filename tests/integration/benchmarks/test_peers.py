"""The benchmark of the peers runs, at least with those that need nothing from a registry."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow  # a benchmark; its comparison of balances is tested in tests/unit/test_peer_books.py
def test_each_peer_without_an_installation_loses_and_doubles_nothing() -> None:
    command = [sys.executable, "-m", "benchmarks.peers", "--quick", "--no-install"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    rows = {line[:28].strip(): line.split()[-2:] for line in done.stdout.splitlines()}
    for peer in (
        "no engine: threads",
        "no engine: asyncio",
        "this engine: bulk",
        "this engine: HTTP, shared",
        "this engine: single",
        "this engine: single, local",
        "Temporal by hand",
        "Temporal by hand, local",
    ):
        assert rows[peer] == ["0", "0"]
    assert "left out: Restate, because nothing was to be installed" in done.stdout
