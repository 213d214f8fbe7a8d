"""Stored snapshots are read and written again without a change.

``snapshots.json.gz`` holds states of random sagas in which every field of the state occurs. Runs that continue, and
sagas that are undone later, carry such snapshots; so from the first release on this file does not change.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from sagas.machine.machine import Machine

SNAPSHOTS: list[dict[str, Any]] = json.loads(
    gzip.decompress(Path(__file__).with_name("snapshots.json.gz").read_bytes())
)


@pytest.mark.parametrize("number", range(len(SNAPSHOTS)))
def test_a_snapshot_is_restored_and_written_identically(number: int) -> None:
    restored = Machine.restore(SNAPSHOTS[number])
    assert json.loads(json.dumps(restored.snapshot())) == SNAPSHOTS[number]
