"""The guard: a step's effect happens exactly once, or provably never. One guard per database.

For every operation of a step it keeps a row, written in the same local transaction as the effect (a sub-transaction
barrier that also stores results). ``rules`` defines what the rows mean, ``script_transactions`` runs a script in a
transaction; this file maps each guard call to its script.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Literal

from saga_activities.guard import rules
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.keep_alive import keep_alive
from saga_activities.guard.rules import GuardedBody, GuardMode, ScriptResult
from saga_activities.guard.script_transactions import ScriptTransactions
from saga_activities.guard.sql_session import SqlSession
from saga_activities.guard.transaction import GuardTransaction, RowOp
from sagas.protocol.outcomes import Failure, Outcome

_NOT_DECIDED = object()


class Guard(ScriptTransactions):
    """The guard of one connection. All times are seconds since the epoch.

    ``scheduled_at`` is when the platform scheduled the attempt (the watermark is compared with it), ``deadline``
    when the attempt ends: no transaction outlives it. No method raises for errors of a participant, a database or an
    action: they are part of the outcome. A cancelled call rolls back first, unless COMMIT has been sent.

    ``idle_limit`` (seconds) is for bodies that work outside the database for a long time: the server ends a
    transaction that is idle for longer, as that of a frozen process is, and a keepalive statement runs often enough
    while the body works. None: an idle transaction ends with its attempt.
    """

    async def do(
        self,
        entry_key: EntryKey,
        arguments_hash: str | None,
        body: GuardedBody,
        *,
        scheduled_at: float,
        deadline: float,
        idle_limit: float | None = None,
        origin: str | None = None,
        room: int | None = None,
    ) -> Outcome:
        """Run ``body`` once; later attempts get its stored result. ``origin`` is stored with it.

        ``room``: see :mod:`sagas.protocol.result_room`.
        """
        body = keep_alive(body, idle_limit)
        return await self.run(
            entry_key,
            "do",
            lambda tx: rules.do(tx, arguments_hash, body, origin, room),
            scheduled_at,
            deadline,
            arguments_hash,
            idle_limit,
        )

    async def undo(
        self,
        entry_key: EntryKey,
        body: GuardedBody | None,
        *,
        mode: GuardMode = "decide",
        known_done: bool = False,
        forward_hash: str | None = None,
        confirmed_body: GuardedBody | Literal["elsewhere"] | None = None,
        scheduled_at: float,
        deadline: float,
        idle_limit: float | None = None,
        origin: str | None = None,
    ) -> Outcome:
        """Undo the step, or make sure that it never happens; see :class:`sagas.protocol.messages.GuardSpec`.

        ``confirmed_body`` undoes a confirmed step. Markers: ``nothing_to_undo``; ``elsewhere`` (mode ``mark``);
        ``confirmed`` (with ``done``: decided here, and the action that undoes it lives elsewhere; otherwise with a
        ``park_reason``); ``unknown_effect`` (with a ``park_reason``).
        """
        op: RowOp = "own_undo" if mode == "own" else "undo"
        body = body and keep_alive(body, idle_limit)
        if callable(confirmed_body):
            confirmed_body = keep_alive(confirmed_body, idle_limit)
        return await self.run(
            entry_key,
            op,
            lambda tx: rules.undo(tx, body, confirmed_body, known_done, mode, forward_hash, origin),
            scheduled_at,
            deadline,
            idle_limit=idle_limit,
        )

    async def confirm(
        self,
        entry_key: EntryKey,
        body: GuardedBody | None,
        *,
        mode: GuardMode = "decide",
        scheduled_at: float,
        deadline: float,
        idle_limit: float | None = None,
        origin: str | None = None,
    ) -> Outcome:
        """Confirm a step that is done; ``late`` if it is not done or has been undone."""
        op: RowOp = "own_confirm" if mode == "own" else "confirm"
        body = body and keep_alive(body, idle_limit)
        script = partial(rules.confirm, body=body, mode=mode, origin=origin)
        return await self.run(entry_key, op, script, scheduled_at, deadline, idle_limit=idle_limit)

    async def seal(
        self, entry_key: EntryKey, *, scheduled_at: float, deadline: float, origin: str | None = None
    ) -> Outcome:
        """Seal the step if it has not happened.

        ``done`` with marker ``sealed`` (it never happened and never will) or with the stored result of ``do``; ``late``
        if it has been undone.
        """
        return await self.run(entry_key, "seal", lambda tx: rules.seal(tx, origin), scheduled_at, deadline)

    async def reject(self, entry_key: EntryKey, failure: Failure, *, scheduled_at: float, deadline: float) -> Outcome:
        """Seal the step with a rejection, which later attempts of `do` get; whatever is stored already wins."""
        return await self.run(entry_key, "do", lambda tx: rules.reject(tx, failure), scheduled_at, deadline)

    async def record_manual_result(
        self,
        entry_key: EntryKey,
        op: str,
        result: object,
        *,
        check: Callable[..., Awaitable[None]] | None = None,
        mode: GuardMode = "decide",
        scheduled_at: float,
        deadline: float,
        origin: str | None = None,
    ) -> Outcome:
        """Record an operator's decision that ``op`` (do, undo or confirm) is done with ``result``.

        An existing row wins. ``check`` may refuse the decision; ``inherited``: the step was confirmed. Raises
        ``ValueError`` for any other ``op``.
        """

        async def recorded(sql: SqlSession, *, inherited: bool = False) -> object:
            if check is not None:
                await check(sql, inherited=inherited)
            return result

        if op == "do":
            return await self.do(entry_key, None, recorded, scheduled_at=scheduled_at, deadline=deadline, origin=origin)
        # A row of its own records that something has happened elsewhere, whoever has said so.
        more = {"scheduled_at": scheduled_at, "deadline": deadline, "origin": None if mode == "own" else origin}
        if op == "undo":
            confirmed = partial(recorded, inherited=True)
            return await self.undo(entry_key, recorded, mode=mode, confirmed_body=confirmed, **more)
        if op == "confirm":
            return await self.confirm(entry_key, recorded, mode=mode, **more)
        raise ValueError(f"an operator can record a result of do, undo or confirm, not {op}")

    async def skip_undo(
        self, entry_key: EntryKey, body: GuardedBody, *, scheduled_at: float, deadline: float
    ) -> Outcome:
        """Run ``body``, which records that the undo is skipped, unless the undo has happened.

        Marker ``skipped``: it has not. The guard gets no row, so an attempt under way may still undo the step.
        """
        return await self.run(entry_key, "undo", lambda tx: rules.skip_undo(tx, body), scheduled_at, deadline)

    async def decide_held_events(
        self, entry_key: EntryKey, *, committed: bool, scheduled_at: float, deadline: float
    ) -> Outcome:
        """Decide about the held events of an entry whose operations do not.

        Release them if the saga is past its commit point (``committed``), drop them if it ended before. Earlier
        decisions stand.
        """
        script = rules.release_held if committed else rules.drop_held
        return await self.run(entry_key, "confirm", script, scheduled_at, deadline)

    async def lookup(
        self,
        entry_key: EntryKey,
        op: RowOp,
        args_hash: str | None = None,
        *,
        deadline: float,
        origin: str | None = None,
    ) -> Outcome | None:
        """The stored outcome of an operation, without deciding anything; None if it is open.

        Saves the preparation for a transaction that would only find a stored result. A database error is also
        returned as an outcome.
        """

        async def script(tx: GuardTransaction) -> ScriptResult:
            stored = rules.stored_outcome(op, await tx.rows(), args_hash, origin)
            return ScriptResult(stored or Outcome.done(_NOT_DECIDED, attempt=None))

        stored = await self.run(entry_key, op, script, time.time(), deadline)
        return None if stored.kind == "done" and stored.result is _NOT_DECIDED else stored

    async def await_row(self, entry_key: EntryKey, op: RowOp, *, deadline: float) -> Outcome:
        """Wait for the end of an open transaction that has inserted the row of an operation. Nothing is stored."""

        async def script(tx: GuardTransaction) -> ScriptResult:
            await tx.insert(op, "undo")
            return ScriptResult(Outcome.done(attempt=None))

        return await self.run(entry_key, op, script, time.time(), deadline)

    async def run_probe(
        self, entry_key: EntryKey, body: GuardedBody, *, scheduled_at: float, deadline: float
    ) -> Outcome:
        """Run a probe's ``body`` in its own transaction, without a guard row; ``late`` below the watermark."""

        async def script(tx: GuardTransaction) -> ScriptResult:
            await tx.rows()
            return ScriptResult(Outcome.done(await body(tx.sql), attempt=None), commit=True)

        return await self.run(entry_key, "do", script, scheduled_at, deadline)

    async def read(self, entry_key: EntryKey, body: GuardedBody, *, scheduled_at: float, deadline: float) -> Outcome:
        """Run ``body`` in a transaction in which the database refuses writes; ``late`` below the watermark.

        No row of the guard is read or written.
        """

        async def script(tx: GuardTransaction) -> ScriptResult:
            await tx.check_watermark()
            return ScriptResult(Outcome.done(await body(tx.sql), attempt=None))

        return await self.run(entry_key, "do", script, scheduled_at, deadline, read_only=True)
