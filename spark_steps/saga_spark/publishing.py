"""Publish what is staged, and take it back: the operations after the commit point and backward of a `spark` step."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.guard.sql_handle import Sql
from saga_spark import ledger
from saga_spark.ledger import OutputRow
from saga_spark.publications import clean_sink, output_of, publication_of
from saga_spark.settings import SparkSettings
from saga_spark.sinks.registry import sink_for
from saga_spark.sinks.sink import Conflict, NotOurs, Published, Sink
from saga_spark.stage_area import StageArea
from sagas.errors import AlreadyCompensated, Infrastructure, Parked
from sagas.wire import Invocation


class Publishing:
    """Works for one entry, or for all outputs of the saga that are published together."""

    def __init__(self, settings: SparkSettings, engine: AsyncEngine, invocation: Invocation) -> None:
        self._settings = settings
        self._engine = engine
        self._invocation = invocation
        self._area = StageArea(settings.stage)

    async def publish(self) -> Callable[[Sql | None], Any]:
        """What runs inside the guarded transaction. The sinks' state is read before, so that a frozen attempt whose
        transaction is long gone compares against a state that others have moved on from."""
        rows = await self._rows(("STAGED", "PUBLISHED"))
        states = [
            (sink, outputs, await asyncio.to_thread(sink.read_state, [publication_of(row) for row in outputs]))
            for sink, outputs in self._by_sink(rows)
        ]

        async def body(sql: Sql | None) -> dict[str, Any]:
            assert sql is not None
            await self._must_still_be(sql, rows)
            published: dict[str, Any] = {}
            for sink, outputs, state in states:
                with _again():
                    done = await asyncio.to_thread(
                        sink.publish, [publication_of(row) for row in outputs], state, together=_together(outputs)
                    )
                await self._record(sql, outputs, done, "PUBLISHED", published)
            return {"published": published}

        return body

    async def take_back(self, *, confirmed: bool) -> Callable[[Sql | None], Any]:
        """Whatever was published is taken back, whatever was staged is deleted.

        ``confirmed``: somebody was told to publish. Then even what is not visible is taken back: that moves the sink's
        state, so that a publisher which froze on its way fails when it wakes.
        """
        rows = await self._rows(("STAGING", "STAGED", "PUBLISHED", "RETRACTED", "DISCARDED", "QUARANTINED"), empty=True)

        async def body(sql: Sql | None) -> dict[str, Any]:
            assert sql is not None
            retracted: dict[str, Any] = {}
            own = [row for row in rows if row.target.step == self._invocation.step]
            visible = [
                row for row in rows if row.state == "PUBLISHED" or await self._may_appear(row, confirmed and row in own)
            ]
            kept: list[NotOurs] = []
            for sink, outputs in self._by_sink(visible):
                try:
                    with _again():
                        done = await asyncio.to_thread(
                            sink.unpublish, [publication_of(row) for row in outputs], together=_together(outputs)
                        )
                except NotOurs as error:
                    kept.append(error)
                    continue
                await self._record(sql, outputs, done, "RETRACTED", retracted)
            if kept:
                # The other outputs are taken back all the same; an undo that is tried again finds them so.
                others = {"taken_back": sorted(retracted)} if retracted else {}
                raise Parked("; ".join(map(str, kept)), **kept[0].report, **others) from kept[0]
            # What other steps have staged waits for their own undo.
            hidden = [row for row in own if row not in visible and row.state != "RETRACTED"]
            for row in hidden:
                with _again():
                    await asyncio.to_thread(clean_sink, row, self._settings)
                await sql.execute(ledger.settled(row.target, "DISCARDED"))
            for row in [*own, *(row for row in visible if row not in own)]:
                await asyncio.to_thread(self._area.remove_generation, row.target)
            return {"retracted": retracted, "discarded": sorted(row.target.output for row in hidden)}

        return body

    async def _may_appear(self, row: OutputRow, confirmed: bool) -> bool:
        """A sink may have more than the ledger knows, now or soon: the answer of its commit can get lost or be late."""
        if row.manifest is None or row.state != "STAGED":
            return False
        if confirmed:
            return True
        publication = publication_of(row)
        sink = sink_for(publication.output.kind, self._settings)
        return await asyncio.to_thread(sink.find, publication.output, row.target) is not None

    async def _rows(self, states: Sequence[ledger.State], *, empty: bool = False) -> list[OutputRow]:
        """The outputs of this entry, and with them those that are published together. Raises Parked: none is known."""
        asked = self._invocation
        async with self._engine.connect() as connection:
            query = ledger.of_step(asked.saga_id, asked.step, asked.generation)
            rows = [OutputRow.read(row) for row in (await connection.execute(query)).mappings()]
            if any(row.together for row in rows):
                found = (await connection.execute(ledger.of_saga(asked.saga_id))).mappings()
                others = ledger.newest((OutputRow.read(row) for row in found), ("STAGED", "PUBLISHED"))
                rows += [row for row in others if row.together and row.target.step != asked.step]
        if not rows and not empty:
            raise Parked(f"nothing that {asked.step} staged is known in the ledger, so there is nothing to publish")
        refused = [row for row in rows if row.state not in states]
        if refused:
            raise AlreadyCompensated(
                f"the output {refused[0].target.output} of {asked.step} has been taken back already"
            )
        return rows

    async def _must_still_be(self, sql: Sql, rows: Sequence[OutputRow]) -> None:
        """Under the locks of this transaction: nobody has taken anything back since it was read."""
        # Always in the same order: two steps that publish the same outputs wait for each other instead of for ever.
        for row in sorted(rows, key=lambda row: (row.target.step, row.target.output)):
            found = await sql.all(ledger.lock_state(row.target))
            if not found or found[0]["state"] not in ("STAGED", "PUBLISHED"):
                raise AlreadyCompensated(f"the output {row.target.output} of {row.target.step} has been taken back")

    async def _record(
        self,
        sql: Sql,
        rows: Sequence[OutputRow],
        done: Sequence[Published],
        state: ledger.State,
        told: dict[str, Any],
    ) -> None:
        for row, published in zip(rows, done, strict=True):
            await sql.execute(ledger.settled(row.target, state, published.to_json()))
            if row.target.step == self._invocation.step:
                told[row.target.output] = published.to_json()

    def _by_sink(self, rows: Sequence[OutputRow]) -> Iterator[tuple[Sink, list[OutputRow]]]:
        """What is committed by one call: all together-outputs of one kind of sink, every other output alone."""

        def place(row: OutputRow) -> tuple[str, str]:
            return (output_of(row).kind, "" if row.together else f"{row.target.step}/{row.target.output}")

        for _, group in itertools.groupby(sorted(rows, key=place), key=place):
            outputs = list(group)
            yield sink_for(output_of(outputs[0]).kind, self._settings), outputs


@contextlib.contextmanager
def _again() -> Iterator[None]:
    """Others were faster in the sink: like a serialization failure that says nothing about the saga, and is not counted
    among the attempts after which an undo is given up."""
    try:
        yield
    except Conflict as error:
        raise Infrastructure(str(error)) from error


def _together(rows: Sequence[OutputRow]) -> bool:
    return rows[0].together
