"""Rule 9: what a saga remembers stays within its budget, and the effects do not depend on it."""

from __future__ import annotations

import base64
import json
import random
import zlib
from typing import Any

import pytest

from sagas.machine.state_budget import STATE_BUDGET, fit_into_budget, room_left
from sagas.protocol.outcomes import Outcome
from sagas.protocol.result_room import estimated_size
from tests.unit.engine.machine.driver import MachineDriver, saga, step


def noise(length: int, seed: int = 0) -> str:
    """Text that no compressor makes smaller than three quarters."""
    return base64.b64encode(random.Random(seed).randbytes(length * 3 // 4)).decode()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"a",
        b"0123456789abcdef" * 500,
        noise(20_000).encode(),
        json.dumps([{"id": n, "name": f"customer {n}", "ok": n % 3 == 0} for n in range(500)]).encode(),
    ],
    ids=["empty", "one byte", "hex", "base64", "rows"],
)
def test_the_estimate_is_between_compressed_and_plain_size(text: bytes) -> None:
    header = 16
    assert len(zlib.compress(text)) <= estimated_size(text) * 1.01 + header
    assert estimated_size(text) <= len(text)


@pytest.mark.parametrize(
    ("used", "value", "kept"),
    [
        (0, {"id": 1}, True),
        (STATE_BUDGET, {"id": 1}, True),
        (STATE_BUDGET, {"text": noise(1_000)}, False),
        (STATE_BUDGET - 2_000, {"text": noise(1_000)}, True),
        (0, {"text": noise(STATE_BUDGET * 2)}, False),
    ],
)
def test_a_value_is_kept_while_it_fits(used: int, value: Any, kept: bool) -> None:
    stored, total = fit_into_budget(used, value, room_left(used))
    text = json.dumps(value, separators=(",", ":"))
    assert stored == (value if kept else {"omitted": "size", "bytes": len(text)})
    assert total > used


@pytest.mark.parametrize("restore", [False, True])
def test_the_items_of_a_for_each_share_the_budget(restore: bool) -> None:
    big = [Outcome.done({"n": n, "text": noise(200_000, n)}) for n in range(12)]
    answers = {f"a#{n}": outcome for n, outcome in enumerate(big)}
    each = step("a", on=None, for_each="${{ input.items }}", max_parallel=1)
    driver = MachineDriver(saga(each), {"items": list(range(12))}, answers, restore=restore).run()
    assert driver.state == "COMPLETED"
    results = [row["result"] for row in driver.story["steps"]]
    kept = [result for result in results if "text" in result]
    assert kept == results[: len(kept)]
    assert 8 <= len(kept) <= 11
    assert all(result["omitted"] == "size" and result["bytes"] > 200_000 for result in results[len(kept) :])
    assert all(row["outcome"] == "done" for row in driver.story["steps"])


def test_a_small_result_is_kept_when_the_budget_is_used_up() -> None:
    answers = {"a": Outcome.done({"text": noise(3 * 1024 * 1024)}), "b": Outcome.done({"id": 7})}
    driver = MachineDriver(saga(step("a"), step("b")), answers=answers).run()
    assert driver.row("a")["result"]["omitted"] == "size"
    assert driver.row("b")["result"] == {"id": 7}
