"""The environment of a cell of bulk execution: its saga shares a workflow, and chunks, with others."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import psycopg
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError

from saga_workers.client import Client
from saga_workers.runtime.databases import set_up_database
from saga_workers.start.start_requests import BulkRow
from tests.faults.breakpoints import Target
from tests.faults.cell_environment import CellEnvironment, activity_id, default_input
from tests.helpers.waiting import LIMIT, until

_TOTAL = "select (select sum(balance) from accounts) + (select coalesce(sum(amount), 0) from holds)"
_FINAL = ("COMPLETED", "COMPENSATED", "RESIDUE")


@dataclass
class BulkCellEnvironment(CellEnvironment):
    """``saga_id`` is the one that a fault of a single saga hits; the others only share its workflow.

    No step has a task queue of its own, which bulk execution does not share; so one worker runs workflow and chunks.
    """

    keeps_ledger: ClassVar[bool] = True
    _bulk: WorkflowHandle[Any, Any] | None = None

    @property
    def members(self) -> tuple[str, ...]:
        return (self.saga_id, f"{self.saga_id}-2", f"{self.saga_id}-3")

    async def build(self, edit: Mapping[str, str] | None = None) -> None:
        await super().build({**(edit or {}), "  task_queue: QUEUE\n": ""})
        await set_up_database((await self.client()).project.settings.sql_connection("bank"))

    async def script_attempts(self, target: Target, *does: str) -> None:
        """Script the next attempts of an operation, of the saga that is hit."""
        await self._script(self.saga_id, target, *does)

    async def script_all(self, target: Target, *does: str) -> None:
        """Script the next attempts of an operation, of all sagas."""
        await self._script(None, target, *does)

    async def _script(self, saga_id: str | None, target: Target, *does: str) -> None:
        statement = "insert into scripted_attempts values (%s, %s, %s, %s)"
        await self.admin(statement, target.step, target.op, list(does), saga_id)

    async def start(self, input: Mapping[str, Any] | None = None) -> Any:
        """Start the bulk workflow; ``input`` is that of the saga that is hit. Returns its handle."""
        if self.target.op == "undo":
            await self._script(None, Target("capture", "do"), "reject")
        self.fault_is_over()
        self._bulk = await self.start_bulk(input)
        return self._bulk

    async def start_bulk(
        self, input: Mapping[str, Any] | None = None, client: Client | None = None
    ) -> WorkflowHandle[Any, Any]:
        starter = await (client or await self.client()).starter(self.saga)
        inputs = [input or default_input(), *(default_input() for _ in self.members[1:])]
        return await starter.start_bulk(
            [BulkRow(id, starter.make_request(input)) for id, input in zip(self.members, inputs, strict=True)]
        )

    @property
    def handle(self) -> WorkflowHandle[Any, Any]:
        """The bulk workflow."""
        assert self._bulk is not None
        return self._bulk

    def is_activity(self, id: str, target: Target) -> bool:
        return re.fullmatch(re.escape(activity_id(target)) + r"~\d+", id) is not None

    async def effect_is_there(self) -> None:
        """Wait until the target's effect is committed for all sagas."""
        question = "select 1 where %s = (select count(*) from journal where step = %s and op = %s)"
        values = len(self.members), self.target.step, self.target.op
        await until(lambda: self.admin(question, *values), "the effects")

    async def finished(self, timeout: float = LIMIT) -> dict[str, Any]:
        """Wait until every saga is over or parked, watching the sum of the bank; gives the story of the one hit."""
        end = time.monotonic() + timeout
        client = await self.client()
        waiting = list(self.members)
        while waiting:
            with suppress(psycopg.OperationalError, RPCError):
                self.totals.add((await self.admin(_TOTAL))[0][0])
                waiting = [id for id in waiting if not await self._is_over(id)]
            if time.monotonic() > end:
                stories = [await client.show(id) for id in waiting]
                rows = [[(row["id"], row["state"], row["error"]) for row in story["steps"]] for story in stories]
                logs = "\n".join(f"--- {worker.name}\n{worker.tail(15)}" for worker in self.workers)
                raise AssertionError(f"I12: {waiting} are not over after {timeout} s: {rows}\n{logs}")
            await asyncio.sleep(0.1)
        self.seconds = time.monotonic() - self.last_fault
        return await client.show(self.saga_id)

    async def _is_over(self, saga_id: str) -> bool:
        if (await self.ledger_state(saga_id)) in _FINAL:
            return True
        workflow = await self.own_workflow(saga_id)
        if workflow is None:
            return False
        state = {pair.key.name: pair.value for pair in workflow.typed_search_attributes}.get("SagaState")
        return workflow.status is not WorkflowExecutionStatus.RUNNING or state == "PARKED"

    async def ledger_state(self, saga_id: str) -> str | None:
        rows = await self.admin("select state from saga_run where saga_id = %s order by generation desc", saga_id)
        return rows[0][0] if rows else None

    async def own_workflow(self, saga_id: str) -> Any:
        """The description of the saga's own workflow; None if it has none, because it has not left."""
        client = await self.client()
        try:
            return await client.temporal.get_workflow_handle(saga_id).describe()
        except RPCError as error:
            if error.status.name != "NOT_FOUND":
                raise
            return None
