"""A skipped automatic undo leaves its rows as they are: no other undo relies on it, and its residue has all changes.

Two nested sagas of one root change one row, `first` before `second`. Then a person changes it, and the root is
cancelled, so the undo of `second` parks.
"""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from sagas.protocol.saga_view import SagaView
from tests.helpers.processes import TemporalServer
from tests.integration.engine.shared_rows import CancelledSaga, cancelled_saga, everywhere, on_postgresql


@everywhere
async def test_a_row_that_another_undo_has_left_to_it_is_in_its_residue(
    kind: str, temporal: TemporalServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with cancelled_saga("parallel", kind, tmp_path, temporal, request) as saga:
        await saga.shop.ended(saga.first)
        assert await saga.value() == 40
        view = await saga.skip()
        assert (view.state, len(view.residue)) == ("RESIDUE", 1)
        await saga.shop.restore(view.residue)
        assert await saga.value() == 0


@everywhere
async def test_no_later_undo_leaves_a_row_to_a_skipped_one(
    kind: str, temporal: TemporalServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with cancelled_saga("in-order", kind, tmp_path, temporal, request) as saga:
        view, first = await saga.skip(), saga.first
        parked = await saga.shop.reached(first, lambda view: bool(view.parked))
        assert "has been changed since" in parked.parked[0].why
        await saga.shop.restore(view.residue)
        assert await saga.value() == 1
        await saga.shop.resolve(first, "counted", "retry")
        view = await saga.shop.ended(first)
        assert (view.state, view.residue, await saga.value()) == ("COMPENSATED", (), 0)


@pytest.mark.slow
@on_postgresql
async def test_a_skip_is_recorded_as_soon_as_the_database_answers(
    kind: str, temporal: TemporalServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with cancelled_saga("in-order", kind, tmp_path, temporal, request) as saga:
        database = saga.shop.engine.url.database
        admin = saga.shop.engine.url.set(drivername="postgresql", database="postgres")
        with psycopg.connect(admin.render_as_string(hide_password=False), autocommit=True) as connection:
            connection.execute(f"alter database {database} allow_connections false".encode())
            connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [database])
            await saga.shop.resolve(saga.second, "counted", "skip")
            view = await saga.shop.client.view(saga.second)
            assert (view.state, view.residue) == ("COMPENSATING", ())
            assert view.operator[-1].decision == "skip"
            connection.execute(f"alter database {database} allow_connections true".encode())
        await saga.shop.engine.dispose()
        view = await saga.shop.ended(saga.second)
        assert (view.state, len(view.residue)) == ("RESIDUE", 1)
        assert await saga.shop.read("select undone from saga_image where sequence = 0 order by created_at") == [
            (0,),
            (1,),
        ]
        await saga.shop.restore(view.residue)
        assert await saga.value() == 1


@everywhere
async def test_done_is_compared_with_the_rows_that_nobody_has_shown(
    kind: str, temporal: TemporalServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with cancelled_saga("in-order", kind, tmp_path, temporal, request) as saga:
        await _park_with_another_column(saga)
        await saga.shop.execute("alter table counter drop column more")
        await saga.shop.resolve(saga.second, "counted", "done", evidence="I think so")
        await _parked_because(saga, "rows are not as before the step")
        await saga.shop.execute("alter table counter add more int")
        await saga.shop.resolve(saga.second, "counted", "done", evidence="the rows of saga show")
        view = await saga.shop.ended(saga.second)
        assert (view.state, await saga.value()) == ("COMPENSATED", 40)


@pytest.mark.slow
@everywhere
async def test_rows_that_cannot_be_read_are_shown_as_their_images(
    kind: str, temporal: TemporalServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with cancelled_saga("in-order", kind, tmp_path, temporal, request) as saga:
        (parked,) = (await _park_with_another_column(saga)).parked
        assert "counter has other columns than when the step ran: now also more; change the table back" in parked.why
        assert parked.rows is not None
        (row,) = parked.rows
        assert (row.before, row.after, row.now, row.unread) == ({"n": "1"}, {"n": "2"}, None, True)
        assert "could not be read" in (parked.sql_note or "")
        await saga.shop.execute("update counter set n = 1")
        await saga.shop.resolve(saga.second, "counted", "done", evidence="the image of saga show")
        view = await saga.shop.ended(saga.second)
        assert (view.state, view.residue, await saga.value()) == ("COMPENSATED", (), 1)


@pytest.mark.slow
@everywhere
async def test_the_residue_names_rows_that_cannot_be_read(
    kind: str, temporal: TemporalServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with cancelled_saga("in-order", kind, tmp_path, temporal, request) as saga:
        (parked,) = (await _park_with_another_column(saga)).parked
        view = await saga.skip()
        assert view.state == "RESIDUE"
        (residue_item,) = view.residue
        assert parked.rows is not None
        assert residue_item.key == parked.rows[0].row
        assert residue_item.command is not None
        assert "saga_image" in residue_item.command


async def _park_with_another_column(saga: CancelledSaga) -> SagaView:
    await saga.shop.execute("alter table counter add more int")
    await saga.shop.resolve(saga.second, "counted", "retry")
    return await _parked_because(saga, "has other columns than when the step ran")


async def _parked_because(saga: CancelledSaga, why: str) -> SagaView:
    return await saga.shop.reached(saga.second, lambda view: bool(view.parked) and why in view.parked[0].why)


@on_postgresql
async def test_an_undo_that_has_happened_is_not_skipped(
    kind: str, temporal: TemporalServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with cancelled_saga("in-order", kind, tmp_path, temporal, request) as saga:
        await saga.shop.execute(
            "insert into saga_guard (saga_id, step, generation, op, reason, result, created_at)"
            f" values ('{saga.second}', 'counted', 1, 'undo', 'undo', '{{\"restored\":1}}', 0)"
        )
        view = await saga.skip()
        assert (view.state, view.residue) == ("COMPENSATED", ())
