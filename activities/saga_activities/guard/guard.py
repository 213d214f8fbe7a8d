"""The guard: a step's effect happens exactly once, or provably never. One guard per database.

It keeps a row for every operation of a step in the same local transaction as the effect (a sub-transaction
barrier with memory). What the rows mean is in ``protocol``, how a script runs in a transaction in ``deliveries``;
this file says which script answers which question.
"""

from __future__ import annotations

import time
from typing import Literal

from saga_activities.guard import protocol
from saga_activities.guard.address import Address
from saga_activities.guard.deliveries import Deliveries
from saga_activities.guard.keeping import kept_alive
from saga_activities.guard.protocol import Body, Mode, Verdict
from saga_activities.guard.sql_handle import Sql
from saga_activities.guard.transaction import RowOp, Transaction
from sagas.outcomes import Outcome

_OPEN = object()


class Guard(Deliveries):
    """The guard of one connection. All times are seconds since the epoch.

    ``scheduled_at`` is when the platform scheduled the attempt (the watermark is compared with it), ``deadline``
    when the attempt ends: no transaction outlives it. No method raises for what a participant, a database or an
    action does: that is in the outcome. A cancelled call rolls back first, unless COMMIT is on its way.

    ``idle_limit`` (seconds) is for bodies that are busy elsewhere for long: the server ends the transaction of a
    process that has frozen by then, and while the body works something is said often enough. None: such a
    transaction ends with its attempt.
    """

    async def do(
        self,
        address: Address,
        arguments_hash: str | None,
        body: Body,
        *,
        scheduled_at: float,
        deadline: float,
        idle_limit: float | None = None,
    ) -> Outcome:
        """Run ``body`` once; later deliveries get its stored result."""
        body = kept_alive(body, idle_limit)
        return await self.run(
            address,
            "do",
            lambda tx: protocol.do(tx, arguments_hash, body),
            scheduled_at,
            deadline,
            arguments_hash,
            idle_limit,
        )

    async def undo(
        self,
        address: Address,
        body: Body | None,
        *,
        mode: Mode = "decide",
        known_done: bool = False,
        confirmed_body: Body | Literal["elsewhere"] | None = None,
        scheduled_at: float,
        deadline: float,
        idle_limit: float | None = None,
    ) -> Outcome:
        """Undo the step, or see to it that it never happens; see :class:`sagas.machine.commands.Guard`.

        Markers: ``nothing_to_undo``, ``elsewhere`` (mode ``mark``), ``confirmed`` (done: decided, and what undoes it
        lives elsewhere; else with ``parks``) and ``unknown_effect`` (with ``parks``). ``confirmed_body`` undoes a
        confirmed step.
        """
        op: RowOp = "own_undo" if mode == "own" else "undo"
        body = body and kept_alive(body, idle_limit)
        if callable(confirmed_body):
            confirmed_body = kept_alive(confirmed_body, idle_limit)
        return await self.run(
            address,
            op,
            lambda tx: protocol.undo(tx, body, confirmed_body, known_done, mode),
            scheduled_at,
            deadline,
            idle_limit=idle_limit,
        )

    async def confirm(
        self,
        address: Address,
        body: Body | None,
        *,
        mode: Mode = "decide",
        scheduled_at: float,
        deadline: float,
        idle_limit: float | None = None,
    ) -> Outcome:
        """Confirm a step that is done; ``late`` when it was not done or has been undone."""
        op: RowOp = "own_confirm" if mode == "own" else "confirm"
        body = body and kept_alive(body, idle_limit)
        return await self.run(
            address, op, lambda tx: protocol.confirm(tx, body, mode), scheduled_at, deadline, idle_limit=idle_limit
        )

    async def seal(self, address: Address, *, scheduled_at: float, deadline: float) -> Outcome:
        """Marker ``sealed``: it never happened and never will; ``done`` with the stored result; or ``late``."""
        return await self.run(address, "seal", protocol.seal, scheduled_at, deadline)

    async def settle(
        self,
        address: Address,
        op: str,
        result: object,
        *,
        mode: Mode = "decide",
        scheduled_at: float,
        deadline: float,
    ) -> Outcome:
        """Write what a person says: ``op`` (do, undo or confirm) is done with ``result``. A row there wins."""

        async def said(_: Sql) -> object:
            return result

        if op == "do":
            return await self.do(address, None, said, scheduled_at=scheduled_at, deadline=deadline)
        if op == "undo":
            return await self.undo(
                address, said, mode=mode, confirmed_body=said, scheduled_at=scheduled_at, deadline=deadline
            )
        if op == "confirm":
            return await self.confirm(address, said, mode=mode, scheduled_at=scheduled_at, deadline=deadline)
        raise ValueError(f"a person can settle do, undo or confirm, not {op}")

    async def settle_held(self, address: Address, *, committed: bool, scheduled_at: float, deadline: float) -> Outcome:
        """Decide about the held events of an entry that nobody else decides about: released when its saga is past the
        commit point (``committed``), dropped when it ended without it. What has been decided already stays so."""
        script = protocol.release_held if committed else protocol.drop_held
        return await self.run(address, "confirm", script, scheduled_at, deadline)

    async def known(
        self, address: Address, op: RowOp, args_hash: str | None = None, *, deadline: float
    ) -> Outcome | None:
        """What the rows already say about an operation, without deciding anything; None: it is open.

        Saves the work before a transaction that would only find a stored result. Trouble is an answer too.
        """

        async def script(tx: Transaction) -> Verdict:
            told = protocol.told_again(op, await tx.rows(), args_hash)
            return Verdict(told or Outcome.done(_OPEN, attempt=None))

        told = await self.run(address, op, script, time.time(), deadline)
        return None if told.kind == "done" and told.result is _OPEN else told

    async def ask(self, address: Address, body: Body, *, scheduled_at: float, deadline: float) -> Outcome:
        """Run a probe's ``body`` in a transaction of its own that keeps no row; below the watermark it is ``late``."""

        async def script(tx: Transaction) -> Verdict:
            await tx.rows()
            return Verdict(Outcome.done(await body(tx.sql), attempt=None), commit=True)

        return await self.run(address, "do", script, scheduled_at, deadline)
