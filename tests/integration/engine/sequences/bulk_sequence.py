"""A sequence of actions and faults on the sagas of a bulk workflow, and the judgement of each of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from tests.helpers.database_servers import DatabaseServer
from tests.integration.engine.sequences.drawn_batches import Member, draw_batch
from tests.integration.engine.sequences.honest_operator import LONG_QUIET, WHO, Fault, Operator
from tests.integration.engine.sequences.sequence import Actions, Report, add_judgement, describe
from tests.integration.engine.sequences.stack import Printed, Stack, open_stack

_STARTS = 4
"""How often an operator repeats the command for sagas that nobody knows."""


class MemberOperator(Operator):
    """Acts on a saga of a batch, and repeats the command that has started the batch if nobody knows the saga."""

    def __init__(self, stack: Stack, random: Random, member: Member, batch: Batch) -> None:
        super().__init__(stack, random, member.id, member.saga, member.row)
        self.batch = batch

    def refuse(self, printed: Printed) -> str:
        """The claim of a saga that was in its bulk workflow keeps it known. Raises Fault."""
        is_open = any(self.stack.participants.present(self.saga, self.id).values())
        if is_open and self.known_end is None and self.last_seen.get("bulk_workflow"):
            raise Fault(f"{self.id} has effects, and its claim is gone: {printed.text}")
        return super().refuse(printed)

    async def start_over(self) -> bool:
        await self.settled()
        if any(self.stack.participants.present(self.saga, self.id).values()) or self.known_end is not None:
            return False
        if self.count["over", self.id] >= _STARTS:
            return False
        self.count["over", self.id] += 1
        return (await self.batch.start(self)).code == 0


class Batch:
    """The file, and the command that starts its rows."""

    def __init__(self, seed: int, size: int) -> None:
        self.id = f"batch-{seed}"
        self._options = ("--from", "rows.jsonl", "--bulk", "--bulk-size", str(size), "--batch", self.id, "--detach")

    async def start(self, operator: Operator, *options: str) -> Printed:
        words = [str(operator.stack.folder / word) if word == "rows.jsonl" else word for word in self._options]
        return await operator.command("start", "outer", *words, *options)


class BulkActions(Actions):
    """Draws actions on the sagas of a batch, each on one of them or on their bulk workflow."""

    rests_first = 0.1

    def __init__(self, operators: Sequence[MemberOperator], random: Random, batch: Batch) -> None:
        super().__init__(operators[0], random)
        self.operators, self.batch = operators, batch
        self.ends: dict[str, str] = {}
        self.actions |= {
            "start-from": (3, self._start_from),
            "batch-pause": (1, self._batch_pause),
            "batch-cancel": (2, self._batch_cancel),
            "batch-retry": (3, self._batch_retry),
            "batch-show": (1, self._batch_show),
        }

    async def _start(self) -> None:
        await self.batch.start(self.operator)

    async def _rest(self) -> str:
        for operator in self.operators:
            self.ends[operator.id] = await operator.rest()
            operator.note(f"{operator.id} rests: {self.ends[operator.id]}")
        return " ".join(self.ends.values())

    def _choose_saga(self) -> None:
        self.operator = self.random.choice(self.operators)

    async def _remember_ends(self, run_id: str) -> None:
        for operator in self.operators:
            if run_id.startswith("bulk~") or run_id.removesuffix("~undo") == operator.id:
                await operator.remember_end()

    async def _some_run(self) -> Any:
        if self.random.random() < 0.4:
            runs = [run async for run in self.temporal.list_workflows(self.stack.own) if run.id.startswith("bulk~")]
            if runs:
                return self.random.choice(sorted(runs, key=lambda run: (run.start_time, run.run_id)))
        return await super()._some_run()

    async def _start_from(self) -> None:
        if self.random.random() < 0.7:
            await self.batch.start(self.operator)
            return
        self._forget_ends()
        await self.batch.start(self.operator, "--again")

    def _forget_ends(self) -> None:
        """Forget how sagas have ended that may be started again."""
        for operator in self.operators:
            operator.known_end = None

    async def _batch_pause(self) -> None:
        await self.operator.command("batch", "pause", self.batch.id, *WHO)
        await asyncio.sleep(self.random.choice((0.0, 0.3)))
        await self.operator.command("batch", "resume", self.batch.id, *WHO)

    async def _batch_cancel(self) -> None:
        await self.operator.command("batch", "cancel", self.batch.id, "--yes", *WHO)

    async def _batch_retry(self) -> None:
        self._forget_ends()
        await self.operator.command("batch", "retry-failed", self.batch.id, "--detach")

    async def _batch_show(self) -> None:
        await self.operator.command("batch", "show", self.batch.id, "-o", "json")

    async def check_bulk_workflows(self) -> None:
        """Each bulk workflow ends when its sagas have. Raises Fault."""
        end = time.monotonic() + LONG_QUIET
        while opened := await self.stack.open_bulk_workflows():
            if time.monotonic() > end:
                await self.operator.note_open_runs()
                raise Fault(f"these bulk workflows do not end: {opened}")
            await asyncio.sleep(0.3)
        shown = await self.operator.command("batch", "show", self.batch.id, "-o", "json")
        if shown.code == 0:
            self.operator.note(f"{json.loads(shown.out)['sagas']}")


async def run_bulk_sequence(
    seed: int, folder: Path, address: str, postgres: DatabaseServer, names: Sequence[str] | None = None
) -> Report:
    """Run the sequence of a seed on these servers, or one of the actions with these ``names``."""
    random = Random(seed)
    members, report = draw_batch(random, seed), Report(seed)
    size = random.choice((2, 3, 10, 10))
    report.definition = f"{describe(members[0].saga)}{size=}\n" + "".join(f"{each.row}\n" for each in members)
    async with open_stack(folder, address, postgres, members[0].saga, ledger=True) as stack:
        (folder / "rows.jsonl").write_text("".join(f"{member.row}\n" for member in members), "utf-8")
        for member in members:
            stack.participants.prepare(member.saga, member.id)
        batch = Batch(seed, size)
        operators = [MemberOperator(stack, random, member, batch) for member in members]
        for operator in operators:
            operator.log, operator.began = operators[0].log, operators[0].began
        sequence = BulkActions(operators, random, batch)
        report.actions = sequence.made
        try:
            report.end = await sequence.run(names)
            await operators[0].settled()
            await sequence.check_bulk_workflows()
        except Fault as fault:
            report.faults.append(str(fault))
        except Exception as error:  # noqa: BLE001 - a broken sequence is reported with what it has done
            report.faults.append(f"harness: {error!r}\n{traceback.format_exc()}")
        for operator in operators:
            end = sequence.ends.get(operator.id, "")
            seen = operator.known_end if end == "refused" else None
            await add_judgement(report, operator, seen or end)
        report.log = operators[0].log
        with contextlib.suppress(OSError):
            report.worker_logs = stack.worker_logs()
    return report
