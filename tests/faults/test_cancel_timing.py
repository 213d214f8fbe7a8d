"""Cancel at random times: some races between a cancel and an end are rare (fault 24)."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress

import pytest

from sagas.errors import RefusedError
from tests.faults.cell_environment import default_input
from tests.faults.cells import Cell, Row
from tests.faults.evidence.checker import Expected, check
from tests.faults.evidence.evidence import gather
from tests.faults.shared_servers import SharedServers, open_environment

WHOLE = 0.6
"""Seconds, about as long as one saga takes here: a cancel falls anywhere between its start and its end."""


@pytest.mark.parametrize(
    ("tries", "native"),
    [
        pytest.param(6, False, id="a-few"),
        pytest.param(6, True, id="a-few-natively", marks=pytest.mark.slow),
        pytest.param(200, False, id="200", marks=pytest.mark.slow),
        pytest.param(200, True, id="200-natively", marks=pytest.mark.slow),
    ],
)
async def test_cancel_at_a_random_time(tries: int, native: bool, servers: SharedServers) -> None:
    """One saga after the other over the same bank; the outcome is COMPLETED or COMPENSATED, never between."""
    seed = 24_000 + tries
    moments = random.Random(seed)
    ends: Counter[str] = Counter()
    row = Row("24", f"random-{tries}-{native}", _unused, {"B": Expected("COMPLETED")})
    async with open_environment(Cell(row, "B"), servers) as env:
        client = await env.client()
        await env.worker()
        for number in range(tries):
            await env.admin("truncate journal, holds, orders")
            await env.admin("update accounts set balance = case id when 'customer' then 100 else 0 end")
            env.saga_id = f"{env.database}-{number}"
            env.fault_is_over()
            await client.start("transfer", default_input(), id=env.saga_id)
            moment = moments.uniform(0, WHOLE)
            await asyncio.sleep(moment)
            natively = native
            with suppress(RefusedError):  # past the point of no return, or over
                if native:
                    await env.handle.cancel()
                else:  # a worker that is too busy to answer is asked natively
                    natively = await env.cancel() == "requested"
            story = await env.finished()
            expected = Expected("COMPLETED")
            if story["state"] != "COMPLETED":
                expected = Expected("COMPENSATED", "cancelled", statuses=("CANCELED",) if natively else ())
            violations = check(await gather(env, story), expected)
            assert not violations, f"try {number} of seed {seed}, after {moment:.3f} s: {violations}"
            ends[story["state"]] += 1
    if tries >= 100:
        assert len(ends) == 2, f"all ended {ends}: the cancels did not fall around the pivot"


async def _unused(_: object) -> None:
    raise AssertionError("this row is not a cell of the matrix")
