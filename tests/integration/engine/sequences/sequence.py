"""A sequence of actions of operators, and of faults, that is drawn from a seed, and the judgement of its end."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from temporalio.service import RPCError

from tests.helpers import run_changes
from tests.helpers.database_servers import DatabaseServer
from tests.integration.engine.sequences.drawn_sagas import DrawnSaga, draw_saga
from tests.integration.engine.sequences.honest_operator import WHO, Fault, Operator, tasks_of
from tests.integration.engine.sequences.participants import Row
from tests.integration.engine.sequences.stack import Stack, open_stack

_PAUSES = (0.0, 0.05, 0.2, 0.5, 1.0, 2.0)


@dataclass
class Report:
    """The end of a sequence. ``faults``: what must not be."""

    seed: int
    actions: list[str] = field(default_factory=list)
    end: str = ""
    faults: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    definition: str = ""
    journal: list[str] = field(default_factory=list)
    worker_logs: str = ""

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {self.end}", *self.faults, self.definition, *self.log, *self.journal]
        return "\n".join(lines)


class Actions:
    """Draws actions, and makes them."""

    rests_first = 0.3
    """How often the first action is made after the end."""

    def __init__(self, operator: Operator, random: Random) -> None:
        self.operator, self.random = operator, random
        self.stack, self.temporal = operator.stack, operator.stack.temporal
        self.made: list[str] = []
        self.actions: dict[str, tuple[int, Callable[[], Awaitable[None]]]] = {
            "cancel": (3, self._cancel),
            "signal": (4, self._signal),
            "decide": (3, self._decide),
            "kill": (3, self._kill),
            "freeze": (2, self._freeze),
            "stop": (2, self._stop),
            "reset": (6, self._reset),
            "terminate": (3, self._terminate),
            "delete": (4, self._delete),
            "purge": (4, self._purge),
            "resume": (4, self._resume),
            "undo": (3, self._undo),
            "again": (2, self._again),
            "repair": (2, self._repair),
        }

    @property
    def id(self) -> str:
        return self.operator.id

    async def _draw(self) -> str:
        """The name of an action; mostly one that is possible now."""
        document, _ = await self.operator.show(self.id)
        state = "unknown" if document is None else document["state"]
        weights: dict[str, float] = {name: weight for name, (weight, _) in self.actions.items()}
        helpful = {
            "decide": state == "PARKED" or bool(document and document["parked"]),
            "resume": state in ("TERMINATED", "unknown"),
            "undo": state == "COMPLETED",
            "again": state in ("COMPENSATED", "RESIDUE", "TERMINATED"),
            "cancel": state in ("RUNNING", "PARKED"),
            "signal": state in ("RUNNING", "COMPENSATING"),
            "terminate": state in ("RUNNING", "PARKED", "COMPENSATING", "COMMITTED"),
            "stop": state in ("RUNNING", "PARKED", "COMPENSATING", "COMMITTED"),
            "reset": state != "unknown",
            "delete": state != "unknown",
        }
        for name, is_helpful in helpful.items():
            weights[name] *= 2.0 if is_helpful else 0.15
        return self.random.choices(list(weights), list(weights.values()))[0]

    async def _start(self) -> None:
        await self.operator.command("start", "outer", "--id", self.id)

    async def _rest(self) -> str:
        return await self.operator.rest()

    def _choose_saga(self) -> None:
        """Choose the saga on which the next action is made."""

    async def _remember_ends(self, run_id: str) -> None:
        """Look at the sagas that this run has run before it is deleted: nobody can do so later."""
        if run_id.removesuffix("~undo") == self.id:
            await self.operator.remember_end()

    async def run(self, names: Sequence[str] | None) -> str:
        """Start the saga, make the actions, or two to eight others, and let things rest; gives the state at rest."""
        await self.stack.start_worker()
        await self._start()
        if names is not None:
            return await self._act(names, len(names))
        if self.random.random() < self.rests_first:
            self.operator.note(f"at rest: {await self._rest()}")
        end = await self._act(None, self.random.randrange(2, 6))
        if self.random.random() < 0.4:
            self.operator.note(f"at rest: {end}")
            end = await self._act(None, self.random.randrange(1, 4))
        return end

    async def _act(self, names: Sequence[str] | None, count: int) -> str:
        """Make the actions, and let things rest; gives the state at rest."""
        for place in range(count):
            await asyncio.sleep(self.random.choice(_PAUSES))
            self._choose_saga()
            name = await self._draw() if names is None else names[place]
            self.made.append(name)
            self.operator.note(f"-- {name} ({self.id})")
            if name not in ("kill", "purge", "delete", "terminate", "stop", "reset"):
                await self._restart_worker()
            try:
                await self.actions[name][1]()
            except RPCError as error:
                self.operator.note(f"   Temporal: {error.message}")
        await self._restart_worker()
        return await self._rest()

    async def _restart_worker(self) -> None:
        if self.stack.worker is None or not self.stack.worker.running:
            await self.stack.start_worker()

    async def _some_run(self) -> Any:
        """A run that Temporal has, of the saga, of its undo, or of a nested saga."""
        runs = [run async for run in self.temporal.list_workflows(self.stack.own)]
        runs.sort(key=lambda run: (run.id, run.start_time))
        own = [run for run in runs if run.id == self.id]
        if own and self.random.random() < 0.5:
            return own[-1]
        return self.random.choice(runs) if runs else None

    async def _cancel(self) -> None:
        ids = [self.id, self.id, *(await self.operator.nested_ids())]
        await self.operator.command("cancel", self.random.choice(ids), *WHO)

    async def _signal(self) -> None:
        for id in [self.id, *(await self.operator.nested_ids())]:
            document, _ = await self.operator.show(id)
            waits = [row for row in (document or {}).get("steps", []) if row["uses"] == "wait"]
            for row in waits:
                if row["state"] in ("RUNNING", "PENDING"):
                    await self.operator.command("signal", id, f"go-{row['id']}", *WHO)
                    return

    async def _decide(self) -> None:
        for id in [self.id, *(await self.operator.nested_ids())]:
            document, _ = await self.operator.show(id)
            for parked in (document or {}).get("parked", []):
                await self.operator.decide(id, parked)
                return

    async def _kill(self) -> None:
        await self.stack.kill_worker()
        if self.random.random() < 0.5:
            await self._restart_worker()

    async def _freeze(self) -> None:
        await self.stack.freeze_worker(self.random.choice((1.0, 4.0, 8.0, 12.0)))

    async def _reset(self) -> None:
        run = await self._some_run()
        if run is None:
            return
        handle = self.temporal.get_workflow_handle(run.id, run_id=run.run_id)
        tasks = await tasks_of(handle)
        if not tasks:
            return
        task = self.random.choice(tasks)
        keeps = self.random.random() < 0.5
        self.operator.note(f"   reset {run.id} {run.run_id} to {tasks.index(task) + 1} of {len(tasks)} tasks, {keeps=}")
        await run_changes.reset_run(self.temporal, run.id, task, run_id=run.run_id, keeps_signals=keeps)

    async def _terminate(self) -> None:
        run = await self._some_run()
        if run is not None:
            self.operator.note(f"   terminate {run.id}")
            await self.temporal.get_workflow_handle(run.id).terminate("a test")

    async def _stop(self) -> None:
        """Cancel a run in Temporal."""
        run = await self._some_run()
        if run is not None:
            self.operator.note(f"   cancel {run.id}")
            await self.temporal.get_workflow_handle(run.id).cancel()

    async def _delete(self) -> None:
        run = await self._some_run()
        if run is None:
            return
        await self._remember_ends(run.id)
        self.operator.note(f"   delete {run.id} {run.run_id}")
        await run_changes.request_deletion(self.temporal, run.id, run.run_id)
        for _ in range(100):
            described = [each async for each in self.temporal.list_workflows(f"RunId = '{run.run_id}'")]
            if not described:
                return
            await asyncio.sleep(0.05)

    async def _purge(self) -> None:
        purged = await self.stack.purge()
        self.operator.note(f"   purged {purged} sagas")

    async def _resume(self) -> None:
        ids = [self.id, self.id, *(await self.operator.nested_ids())]
        id = self.random.choice(ids)
        printed = await self.operator.command("resume", id, *WHO)
        if printed.code:
            await self.operator.follow(id, printed.text)

    async def _undo(self) -> None:
        await self.operator.command("undo", self.id, "--reason", "a test", "--yes", "--timeout", "2s", *WHO)

    async def _again(self) -> None:
        document, _ = await self.operator.show(self.id)
        if document is None:
            return  # nobody knows the id any more: it would be another saga, which the operator has to rule out
        printed = await self.operator.command(
            "start", "outer", "--id", self.id, "--input", self.operator.input, "--again"
        )
        if printed.code == 0 and printed.out.startswith("started"):
            self.operator.known_end = None

    async def _repair(self) -> None:
        await self.operator.command("reconcile", self.id, "--repair", "--yes", *WHO)


def judge(saga: DrawnSaga, rows: list[Row], present: dict[str, int], end: str) -> list[str]:
    """Find what the journal tells against the end of the saga, and against each effect being made and undone once."""
    faults: list[str] = []
    counts: Counter[str] = Counter()
    for row in rows:
        if row.op == "do" and counts[row.path]:
            faults.append(f"{row.path} is done twice")
        if row.op == "undo" and not counts[row.path]:
            faults.append(f"{row.path} is undone without an effect")
        counts[row.path] += 1 if row.op == "do" else -1
    for path, count in present.items():
        if count not in (0, 1):
            faults.append(f"{path} is there {count} times")
        if end == "COMPLETED" and count != 1:
            faults.append(f"COMPLETED without {path}")
        if end in ("COMPENSATED", "TERMINATED") and count:
            faults.append(f"{end}, and {path} is left")
    return list(dict.fromkeys(faults))


def describe(saga: DrawnSaga) -> str:
    """A line for the saga and one for each that is nested in it."""
    lines: list[str] = []
    for each in saga.all_sagas():
        steps = [
            f"{step.id}:{step.kind}@{step.place}{'!' if step.pivot else ''}"
            f"{'' if step.needs is None else list(step.needs)}{step.on_failure or ''}{dict(step.answers) or ''}"
            for step in each.steps
        ]
        lines.append(f"{each.name}: {'; '.join(steps)}\n")
    return "".join(lines)


async def run_sequence(
    seed: int, folder: Path, address: str, postgres: DatabaseServer, names: Sequence[str] | None = None
) -> Report:
    """Run the sequence of a seed on these servers, or one of the actions with these ``names``."""
    random = Random(seed)
    saga, report = draw_saga(random), Report(seed)
    report.definition = describe(saga)
    with_ledger = random.random() < 0.5
    report.definition += f"{with_ledger=}"
    async with open_stack(folder, address, postgres, saga, ledger=with_ledger) as stack:
        id = f"outer-{seed}"
        stack.participants.prepare(saga, id)
        operator = Operator(stack, random, id, saga)
        sequence = Actions(operator, random)
        report.actions = sequence.made
        try:
            end = await sequence.run(names)
            await operator.settled()
            report.end = end if operator.known_end is None or end != "refused" else f"{operator.known_end}"
        except Fault as fault:
            report.faults.append(str(fault))
        except Exception as error:  # noqa: BLE001 - a broken sequence is reported with what it has done
            report.faults.append(f"harness: {error!r}\n{traceback.format_exc()}")
        await add_judgement(report, operator, report.end)
        report.log = operator.log
        with contextlib.suppress(OSError):
            report.worker_logs = stack.worker_logs()
    return report


async def add_judgement(report: Report, operator: Operator, end: str) -> None:
    """Judge a saga by the journal, which is added to the report."""
    saga, id, participants = operator.saga, operator.id, operator.stack.participants
    rows, present = participants.journal(id), participants.present(saga, id)
    faults = judge(saga, rows, present, end)
    faults += [f"{end}, and it holds {held}" for held in await holdings_of(operator.stack, id, end)]
    report.faults += [f"{id}: {fault}" for fault in faults]
    hands = {True: " by hand", False: ""}
    report.journal += [f"{row.at - operator.began:6.2f} {row.op} {row.key}{hands[row.by_hand]}" for row in rows]
    report.journal.append(f"{id} {end}, present: {present}")


async def holdings_of(stack: Stack, saga_id: str, end: str) -> list[str]:
    """The holdings of a saga that has ended; its state is final shortly before it has released everything."""
    if end not in ("COMPLETED", "COMPENSATED"):
        return []
    held: list[str] = []
    for _ in range(50):
        held = await asyncio.to_thread(stack.participants.holdings, saga_id)
        if not held:
            break
        await asyncio.sleep(0.2)
    return held
