"""An operator's decision about the undo of a nested saga closes its row images: no other undo relies on them.

The undo of `second` is parked, and its run is terminated. So the parent parks the undo of its step `second`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from saga_workers.interventions import preview_decision
from sagas.protocol.saga_view import ParkedView
from tests.helpers.processes import TemporalServer
from tests.integration.engine.environment import handle
from tests.integration.engine.shared_rows import CancelledSaga, cancelled_saga, everywhere


async def _terminate(saga: CancelledSaga) -> None:
    """End the undo of ``second`` in Temporal, and wait until the parent waits for a decision."""
    await handle(saga.shop.client, f"{saga.second}~undo").terminate("the test")
    await saga.shop.reached(saga.id, lambda view: any("terminated" in parked.why for parked in view.parked))


async def _refused(saga: CancelledSaga) -> ParkedView:
    view = await saga.shop.reached(saga.id, lambda view: bool(view.parked) and bool(view.parked[0].rows))
    return view.parked[0]


async def _skipping(saga: CancelledSaga) -> list[str]:
    """Output of `saga resolve … skip --dry-run` for the undo of ``second``."""
    decision = {"step": "second", "decision": "skip", "reason": "lost", "who": "ada"}
    return await preview_decision(saga.shop.client.locator, saga.id, decision)


@pytest.mark.slow
@everywhere
async def test_no_later_undo_leaves_a_row_to_a_nested_saga_that_is_done_by_hand(
    kind: str, temporal: TemporalServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with cancelled_saga("in-order", kind, tmp_path, temporal, request) as saga:
        await _terminate(saga)
        await saga.shop.execute("update counter set n = 1")
        await saga.shop.resolve(saga.id, "second", "done", evidence="by hand")
        view = await saga.shop.ended_or_parked(saga.id)
        assert (view.state, await saga.value()) == ("COMPENSATED", 0)


@everywhere
async def test_done_is_refused_once_with_the_rows_that_are_not_as_before_the_nested_saga(
    kind: str, temporal: TemporalServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with cancelled_saga("parallel", kind, tmp_path, temporal, request) as saga:
        await saga.shop.ended(saga.first)  # it has left its row to `second`
        await _terminate(saga)
        await saga.shop.execute("update counter set n = 1")
        await saga.shop.resolve(saga.id, "second", "done", evidence="by hand")
        parked = await _refused(saga)
        assert (parked.system, parked.rows and parked.rows[0].before) == ("shop", {"n": "0"})
        preview = "\n".join(await _skipping(saga))
        assert f"{saga.second} has changed and not restored stay as they are now: the row " in preview
        await saga.shop.execute(*(parked.sql or ()))
        await saga.shop.resolve(saga.id, "second", "done", evidence="the SQL of saga show")
        view = await saga.shop.ended(saga.id)
        assert (view.state, await saga.value()) == ("COMPENSATED", 0)


@everywhere
async def test_the_rows_of_a_nested_saga_whose_undo_is_skipped_are_in_the_residue(
    kind: str, temporal: TemporalServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with cancelled_saga("in-order", kind, tmp_path, temporal, request) as saga:
        await _terminate(saga)
        preview = "\n".join(await _skipping(saga))
        assert f"saga show {saga.second}`; their images: SELECT table_name" in preview
        await saga.shop.resolve(saga.id, "second", "skip")
        await saga.shop.reached(saga.first, lambda view: bool(view.parked))
        await saga.shop.restore((await saga.shop.client.view(saga.id)).residue)
        assert await saga.value() == 1
        await saga.shop.resolve(saga.first, "counted", "retry")
        view = await saga.shop.ended(saga.id)
        assert (view.state, await saga.value()) == ("RESIDUE", 0)
