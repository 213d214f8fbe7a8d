"""Entries of a view that are compared with the guards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from saga_spark.reconcile.extracts import ENTRIES_FILE, SagaExport
from sagas.protocol.saga_view import SagaView

MOMENT = "2026-09-21T00:00:00Z"


def entry(id: str, attempts: int | None, state: str = "DONE") -> dict[str, Any]:
    base = {"id": id, "step": id, "uses": "work", "state": state, "generation": 1, "guarantee": "guarded"}
    return {**base, "started_at": MOMENT, "attempts": attempts}


def entries(folder: Path, steps: list[dict[str, Any]], **more: Any) -> list[str]:
    story = {"id": "a", "saga": "s", "state": "COMPLETED", "started_at": MOMENT, "ended_at": MOMENT, "steps": steps}
    with SagaExport(folder) as journal:
        journal.add(SagaView.from_json(story | more))
    return pq.read_table(folder / ENTRIES_FILE)["step"].to_pylist()


def test_an_empty_for_each_has_no_calls(tmp_path: Path) -> None:
    steps = [entry("reserve#0", 1), entry("redeem", 0), entry("charge", 2), entry("foreign", None)]
    assert entries(tmp_path, steps) == ["reserve#0", "charge", "foreign"]


def test_a_manual_result_before_the_first_attempt_has_a_guard_row(tmp_path: Path) -> None:
    decision = {"at": MOMENT, "who": "kim", "step": "pack", "decision": "done", "reason": "packed by hand"}
    assert entries(tmp_path, [entry("pack", 0)], operator=[decision]) == ["pack"]


def test_an_incomplete_view_is_not_checked(tmp_path: Path) -> None:
    assert entries(tmp_path, [entry("reserve#0", 1)], steps_omitted={"reserve COMPENSATED": 900}) == []
