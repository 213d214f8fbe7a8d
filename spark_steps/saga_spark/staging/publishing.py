"""Publishes staged output and reverts it: the confirm and undo operations of a `spark` step."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.guard.sql_session import SqlSession
from saga_spark import output_records
from saga_spark.output_records import OutputRow, clean_up_sink, output_of, publication_of
from saga_spark.settings import SparkSettings
from saga_spark.sinks.sink import CommitConflict, Published, Sink, UndoConflict, sink_for
from saga_spark.staging.stage_area import StageArea
from sagas.builtins.spark import output_place
from sagas.errors import AlreadyCompensated, InfrastructureError, NeedsOperator
from sagas.protocol.payloads import Invocation


class OutputPublisher:
    """Publishes and reverts the outputs of one entry, or all outputs of the saga that are published together."""

    def __init__(self, settings: SparkSettings, engine: AsyncEngine, invocation: Invocation) -> None:
        self._settings = settings
        self._engine = engine
        self._invocation = invocation
        self._area = StageArea(settings.stage)

    async def publish(self) -> Callable[[SqlSession | None], Any]:
        """Returns the body of the guarded transaction.

        The sinks' state is read before the transaction: an attempt that was suspended past the end of its transaction
        then compares against an outdated state, and conflicts.
        """
        rows = await self._load_rows(("STAGED", "PUBLISHED"))
        states = [
            (sink, outputs, await asyncio.to_thread(sink.read_state, [publication_of(row) for row in outputs]))
            for sink, outputs in self._group_by_commit(rows)
        ]

        async def body(sql: SqlSession | None) -> dict[str, Any]:
            assert sql is not None
            await self._check_not_reverted(sql, rows)
            published: dict[str, Any] = {}
            for sink, outputs, state in states:
                with _conflicts_as_retryable():
                    done = await asyncio.to_thread(
                        sink.publish, [publication_of(row) for row in outputs], state, together=_is_together(outputs)
                    )
                await self._record_state(sql, outputs, done, "PUBLISHED", published)
            return {"published": published}

        return body

    async def revert(self, *, confirmed: bool) -> Callable[[SqlSession | None], Any]:
        """Returns the body that reverts what was published and discards what was staged.

        ``confirmed``: a publish was requested. Then outputs that are not visible are reverted too, which advances the
        sink's state, so that a suspended publisher conflicts when it resumes.
        """
        rows = await self._load_rows(
            ("STAGING", "STAGED", "PUBLISHED", "REVERTED", "DISCARDED", "QUARANTINED"), empty=True
        )

        async def body(sql: SqlSession | None) -> dict[str, Any]:
            assert sql is not None
            reverted: dict[str, Any] = {}
            own = [row for row in rows if row.target.step == self._invocation.entry]
            visible = [
                row
                for row in rows
                if row.state == "PUBLISHED" or await self._may_become_visible(row, confirmed and row in own)
            ]
            kept: list[UndoConflict] = []
            remaining: list[dict[str, Any]] = []
            # What was published last is reverted first: it may have replaced rows of what was published before it.
            for sink, outputs in reversed(list(self._group_by_commit(visible))):
                try:
                    with _conflicts_as_retryable():
                        done = await asyncio.to_thread(
                            sink.revert, [publication_of(row) for row in outputs], together=_is_together(outputs)
                        )
                except UndoConflict as error:
                    self._wait_for_other_steps(error)
                    kept.append(error)
                    remaining += [_remaining_output(row, error) for row in outputs]
                    continue
                await self._record_state(sql, outputs, done, "REVERTED", reverted)
            if kept:
                # The other outputs are reverted all the same; a retry of the undo finds them so.
                why = "; ".join(map(str, kept))
                raise NeedsOperator(why, outputs=remaining, reverted=sorted(reverted)) from kept[0]
            # Staged output of other steps is left to their own undo.
            hidden = [row for row in own if row not in visible and row.state != "REVERTED"]
            for row in hidden:
                with _conflicts_as_retryable():
                    await asyncio.to_thread(clean_up_sink, row, self._settings)
                await sql.execute(output_records.set_state(row.target, "DISCARDED"))
            for row in [*own, *(row for row in visible if row not in own)]:
                await asyncio.to_thread(self._area.remove_generation, row.target)
            return {"reverted": reverted, "discarded": sorted(row.target.output for row in hidden)}

        return body

    async def close(self, decision: Mapping[str, Any]) -> Callable[[SqlSession | None], Any]:
        """Returns the body that records an operator's decision: what of this entry is published was reverted by hand.

        ``decision``: at, who, reason and evidence.
        """
        invocation = self._invocation
        async with self._engine.connect() as connection:
            query = output_records.select_outputs_of_step(invocation.saga_id, invocation.entry, invocation.generation)
            rows = [OutputRow.from_row(row) for row in (await connection.execute(query)).mappings()]

        async def body(sql: SqlSession | None) -> None:
            assert sql is not None
            for row in rows:
                publication = None if row.manifest is None else publication_of(row)
                if publication is None or row.state not in ("STAGED", "PUBLISHED"):
                    continue
                sink = sink_for(publication.output.kind, self._settings)
                if await asyncio.to_thread(sink.find, publication.output, row.target) is not None:
                    with _conflicts_as_retryable():
                        await asyncio.to_thread(sink.close, publication)
                    published = {**(row.published or {}), "closed": dict(decision)}
                    await sql.execute(output_records.set_state(row.target, "CLOSED", published))
                elif row.state == "PUBLISHED":  # the undo that parked has reverted it
                    await sql.execute(output_records.set_state(row.target, "REVERTED"))
                await asyncio.to_thread(self._area.remove_generation, row.target)

        return body

    def _wait_for_other_steps(self, conflict: UndoConflict) -> None:
        """Raises InfrastructureError as long as a later publication of a parallel step, which is to be undone too, is
        in the way: their undos run in parallel, and what was published last has to be reverted first.
        """
        guard = self._invocation.guard
        undone_steps = None if guard is None else guard.undone_steps
        for saga_id, entry in conflict.later:
            undone = undone_steps is None or entry.partition("#")[0] in undone_steps
            if saga_id == self._invocation.saga_id and entry != self._invocation.entry and undone:
                raise InfrastructureError(f"{entry} has published to the same place later, and is to be undone first")

    async def _may_become_visible(self, row: OutputRow, confirmed: bool) -> bool:
        """Return whether the sink may hold more than the output record says: a commit may be unacknowledged or still to
        come.
        """
        if row.manifest is None or row.state != "STAGED":
            return False
        if confirmed:
            return True
        publication = publication_of(row)
        sink = sink_for(publication.output.kind, self._settings)
        return await asyncio.to_thread(sink.find, publication.output, row.target) is not None

    async def _load_rows(self, states: Sequence[output_records.OutputState], *, empty: bool = False) -> list[OutputRow]:
        """The outputs of this entry and those published together with them. Raises NeedsOperator if none is known."""
        invocation = self._invocation
        async with self._engine.connect() as connection:
            query = output_records.select_outputs_of_step(invocation.saga_id, invocation.entry, invocation.generation)
            rows = [OutputRow.from_row(row) for row in (await connection.execute(query)).mappings()]
            if any(row.together for row in rows):
                outputs_of_saga = (
                    await connection.execute(output_records.select_outputs_of_saga(invocation.saga_id))
                ).mappings()
                others = output_records.latest_generations(
                    (OutputRow.from_row(row) for row in outputs_of_saga), ("STAGED", "PUBLISHED")
                )
                rows += [row for row in others if row.together and row.target.step != invocation.entry]
        if not rows and not empty:
            raise NeedsOperator(
                f"no output record has staged output of {invocation.entry}; run the step again or resolve it by hand"
            )
        refused = [row for row in rows if row.state not in states]
        if refused:
            raise AlreadyCompensated(
                f"the output {refused[0].target.output} of {invocation.entry} has already been reverted"
            )
        return rows

    async def _check_not_reverted(self, sql: SqlSession, rows: Sequence[OutputRow]) -> None:
        """Check, under the locks of this transaction, that no output has been reverted since the rows were read."""
        # In a fixed order, so that two steps that publish the same outputs do not deadlock.
        for row in sorted(rows, key=lambda row: (row.target.step, row.target.output)):
            states = await sql.all(output_records.select_state_for_update(row.target))
            if not states or states[0]["state"] not in ("STAGED", "PUBLISHED"):
                raise AlreadyCompensated(f"the output {row.target.output} of {row.target.step} has been reverted")

    async def _record_state(
        self,
        sql: SqlSession,
        rows: Sequence[OutputRow],
        publications: Sequence[Published],
        state: output_records.OutputState,
        results: dict[str, Any],
    ) -> None:
        for row, published in zip(rows, publications, strict=True):
            await sql.execute(output_records.set_state(row.target, state, published.to_json()))
            if row.target.step == self._invocation.entry:
                results[row.target.output] = published.to_json()

    def _group_by_commit(self, rows: Sequence[OutputRow]) -> Iterator[tuple[Sink, list[OutputRow]]]:
        """The outputs that one call commits: all `together` outputs of one kind of sink, every other output alone.

        Always in the same order, whichever step asks: it is the order of publication, and reversed that of the undo.
        """

        def commit_group(row: OutputRow) -> tuple[str, str]:
            return (output_of(row).kind, "" if row.together else f"{row.target.step}/{row.target.output}")

        def place(row: OutputRow) -> tuple[tuple[str, str], str, str]:
            return (commit_group(row), row.target.step, row.target.output)

        for _, group in itertools.groupby(sorted(rows, key=place), key=commit_group):
            outputs = list(group)
            yield sink_for(output_of(outputs[0]).kind, self._settings), outputs


def _remaining_output(row: OutputRow, conflict: UndoConflict) -> dict[str, Any]:
    """The form of :class:`~sagas.protocol.parked_rows_view.ParkedOutputView`, with the ``report`` of the sink."""
    name = row.target.output
    system, place = output_place(row.spec)
    if conflict.target in (None, row.target):
        rows, report = conflict.report.get("samples"), conflict.report
        omitted = None if rows is None else report["rows"] - len(rows) or None
        return {"output": name, "system": system, "place": place, "why": str(conflict), "rows": rows,
                "rows_omitted": omitted, "by_hand": conflict.by_hand, "report": report}  # fmt: skip
    blocking = conflict.target.output
    why = f"it is reverted together with {blocking}, which cannot be reverted"
    return {"output": name, "system": system, "place": place, "why": why, "by_hand": f"as for {blocking}"}


@contextlib.contextmanager
def _conflicts_as_retryable() -> Iterator[None]:
    """Translate a conflict in the sink into a retryable error.

    Like a serialization failure it says nothing about the saga, and does not count as an attempt of an undo.
    """
    try:
        yield
    except CommitConflict as error:
        raise InfrastructureError(str(error)) from error


def _is_together(rows: Sequence[OutputRow]) -> bool:
    return rows[0].together
