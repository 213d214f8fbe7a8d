"""An operator who follows the advice of the commands, and looks at the participants before each decision."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import time
from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHandle
from temporalio.service import RPCError

from tests.helpers.run_changes import reset_run
from tests.helpers.waiting import until_in_thread
from tests.integration.engine.sequences.drawn_sagas import DrawnSaga
from tests.integration.engine.sequences.participants import path_of
from tests.integration.engine.sequences.stack import Printed, Stack

COMMAND = re.compile(r"\bsaga (?:resume|undo)\b(?:(?! {4}|[`\n;]|, then | if |, which ).)*")
"""A command in a text ends before four spaces, a backtick, or what goes on in the sentence."""
TERMINATE = re.compile(r"terminate this run")
RESET = re.compile(r"temporal workflow reset --workflow-id (\S+)")
_TASK_COMPLETED = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
ENDS = ("COMPLETED", "COMPENSATED", "RESIDUE", "FAILED")
QUIET, LONG_QUIET = 15.0, 100.0
"""Seconds without a change after which a saga is taken for stuck; if it waits for an attempt, it may be lost with its
worker, and is repeated after its timeout."""
WHO = ("--as", "ada")


async def tasks_of(run: WorkflowHandle[Any, Any]) -> list[int]:
    """The ends of the workflow tasks of a run, to which it can be reset."""
    return [event.event_id async for event in run.fetch_history_events() if event.event_type == _TASK_COMPLETED]


class Fault(Exception):
    """The engine has done something that no sequence may lead to."""


class Operator:
    """Acts on one saga. ``log``: what was done, with the answers."""

    def __init__(self, stack: Stack, random: Random, saga_id: str, saga: DrawnSaga, input: str = "{}") -> None:
        self.stack, self.random, self.id, self.saga, self.input = stack, random, saga_id, saga, input
        self.log: list[str] = []
        self.count: Counter[tuple[str, ...]] = Counter()
        self.known_end: str | None = None
        """The end of the saga as it was seen before its runs were deleted."""
        self.last_seen: dict[str, Any] = {}
        """The last document of the saga."""
        self.began = time.time()

    def note(self, what: str) -> None:
        self.log.append(f"{time.time() - self.began:6.2f} {what}")

    async def command(self, *words: str) -> Printed:
        printed = await self.stack.command(*words)
        self.note(f"saga {shlex.join(words)} -> {printed.code} {_short(printed)}")
        if "bug in saga" in printed.err or "Traceback" in printed.text:
            raise Fault(f"a traceback: saga {shlex.join(words)}\n{printed.text}")
        return printed

    async def show(self, saga_id: str) -> tuple[dict[str, Any] | None, Printed]:
        printed = await self.stack.command("show", saga_id, "-o", "json")
        if "bug in saga" in printed.err or "Traceback" in printed.text:
            raise Fault(f"a traceback: saga show {saga_id}\n{printed.text}")
        document = json.loads(printed.out) if printed.code == 0 else None
        if document is not None and saga_id == self.id:
            self.last_seen = document
        return document, printed

    async def remember_end(self) -> None:
        """Look at the saga before its run is deleted: nobody can do so later."""
        document, _ = await self.show(self.id)
        if document is not None:
            self.known_end = document["state"] if document["state"] in ENDS else None

    # ---- advice

    async def follow(self, saga_id: str, text: str) -> bool:
        """Follow the first advice in a text that can be followed; true if something was done."""
        for match in COMMAND.finditer(text):
            words = shlex.split(match.group().strip().rstrip(".,)"))[1:]
            if len(words) > 1 and await self._run(words):
                return True
        if (named := RESET.search(text)) is not None and self.count["reset", named[1]] < 3:
            self.count["reset", named[1]] += 1
            await self._reset(named[1])
            return True
        if TERMINATE.search(text) and self.count["terminate", saga_id] < 3:
            self.count["terminate", saga_id] += 1
            self.note(f"terminate {saga_id}, as advised")
            try:
                await self.stack.temporal.get_workflow_handle(saga_id).terminate("as advised")
            except RPCError as error:
                self.note(f"  {error.message}")
            return True
        return False

    async def _reset(self, workflow_id: str) -> None:
        """Reset the run to its last workflow task that did not fail, as `--type LastWorkflowTask` does."""
        tasks = await tasks_of(self.stack.temporal.get_workflow_handle(workflow_id))
        self.note(f"reset {workflow_id} to the last of {len(tasks)} tasks, as advised")
        await reset_run(self.stack.temporal, workflow_id, tasks[-1])

    async def _run(self, words: list[str]) -> bool:
        saga_id, options = words[1], words[2:]
        if "--not-ended" in options and self.known_end is not None and saga_id == self.id:
            return False
        if self.count[tuple(words)] >= 2:
            return False
        self.count[tuple(words)] += 1
        for place, word in enumerate(options):
            if word == "FILE":
                options[place] = str(self.stack.folder / f"{self._name(saga_id)}.saga.yaml")
            elif word == "@FILE":
                options[place] = self.input if saga_id == self.id else "{}"
            elif word == "--undone":
                await self.settled()
                self._take_back(saga_id, options[place + 1])
        if words[0] == "undo":
            options = ["--reason", "a test", "--yes", "--timeout", "20s"]
        printed = await self.command(words[0], saga_id, *options, *WHO)
        if printed.code:
            await self.follow(saga_id, printed.text)
        return True

    def _take_back(self, saga_id: str, step: str) -> None:
        path = f"{self._path(saga_id)}{step}"
        paths = [leaf for leaf, _ in self.saga.leaves() if _is_of(leaf, path)]
        done = self.stack.participants.take_back_by_hand(self.saga, self.id, paths)
        self.note(f"undone by hand: {done}")

    def _path(self, saga_id: str) -> str:
        nested = path_of(saga_id)
        return f"{nested}/" if nested else ""

    def _name(self, saga_id: str) -> str:
        saga = self.saga
        for part in filter(None, path_of(saga_id).split("/")):
            saga = next(step.nested for step in saga.steps if step.id == part)
            assert saga is not None
        return saga.name

    async def settled(self) -> None:
        """Wait until no participant is late any more."""
        await until_in_thread(lambda: not self.stack.participants.is_late())

    # ---- decisions

    async def decide(self, saga_id: str, parked: dict[str, Any]) -> bool:
        """Decide about what is parked, after a look at the participants; true if a decision was accepted."""
        if "waits for an operator at" in parked["why"]:
            return False  # it is decided there
        await self.settled()
        step, op, decisions = parked["step"], parked["op"], parked["decisions"]
        path = f"{self._path(saga_id)}{step}"
        present = self.stack.participants.present(self.saga, self.id)
        counts = [count for leaf, count in present.items() if _is_of(leaf, path)]
        made, times = self._decision(saga_id, path, op, decisions, counts), self.count
        if made is None:
            return False
        times[saga_id, step, op, made[0]] += 1
        self.note(f"  parked {op} {saga_id} {step}: {parked['why'][:200]}; there: {counts}, may {decisions}")
        printed = await self.command("resolve", saga_id, step, *made, "--reason", "looked", "--yes", *WHO)
        return printed.code == 0

    def _decision(self, saga_id: str, path: str, op: str, decisions: list[str], counts: list[int]) -> list[str] | None:
        step = path.rpartition("/")[2]

        def tried(decision: str) -> int:
            return self.count[saga_id, step, op, decision]

        if sum(tried(decision) for decision in ("retry", "done", "compensate")) > 8:
            return None
        leaf = dict(self.saga.leaves()).get(path)
        if op == "undo":
            if not any(counts) and "done" in decisions:
                return ["done", "--evidence", "the journal"]
            if "retry" in decisions and tried("retry") < 2:
                return ["retry"]
            if "done" in decisions:
                self._take_back(saga_id, step)
                return ["done", "--evidence", "the journal"]
            return None
        if all(count == 1 for count in counts) and counts and "done" in decisions:
            return ["done", "--result", "{}", "--evidence", "the journal"]
        choices = [each for each in decisions if each in ("retry", "compensate") and tried(each) < 2]
        if choices and (leaf is None or not any(counts) or "retry" not in choices):
            return [self.random.choice(choices)]
        if "retry" in choices:
            return ["retry"]
        if leaf is not None and leaf.kind == "call" and "done" in decisions and not any(counts):
            self._do_by_hand(path)
            return ["done", "--result", "{}", "--evidence", "the journal"]
        return None

    def _do_by_hand(self, path: str) -> None:
        key = f"{self.id}/{path}"
        run = self.stack.participants.run
        run("remote", "insert into journal (key, op, by_hand) values (%s, 'do', true)", key)
        run("remote", "insert into keys values (%s, 'done') on conflict (key) do update set state = 'done'", key)
        self.note(f"done by hand: {path}")

    # ---- the end

    async def nested_ids(self) -> list[str]:
        """The ids of the runs that Temporal has, without those of undos."""
        listed = [run.id async for run in self.stack.temporal.list_workflows(self.stack.own)]
        return sorted({id.removesuffix("~undo") for id in listed if id.startswith(f"{self.id}/")})

    async def rest(self, limit: float = 400.0) -> str:
        """Act until the saga rests; gives its state, ``stuck`` if it is shown as stuck and no advice is left, and
        ``refused`` if it has no run and cannot be started again.
        """
        end, quiet_since, last = time.monotonic() + limit, time.monotonic(), ""
        cancels = self.random.random() < 0.35
        while time.monotonic() < end:
            if self.stack.worker is None or not self.stack.worker.running:
                await self.stack.start_worker()
                self.note("worker started")
            document, printed = await self.show(self.id)
            acted = False
            nested: list[dict[str, Any]] = []
            if document is None:
                acted = await self.follow(self.id, printed.text) or await self.start_over()
                if not acted:
                    self.note(f"refused: {_short(printed)}")
                    return self.refuse(printed)
            else:
                for id in await self.nested_ids():
                    its, _ = await self.show(id)
                    if its is not None:
                        nested.append(its)
                stuck = document.get("stuck") or []
                if document["state"] in ENDS and not stuck and not await self._open_runs():
                    return document["state"]
                acted = await self._act(document, nested, cancels=cancels)
                cancels = False
            seen = json.dumps([_shape(each) for each in [document, *nested]])
            if acted or seen != last:
                last, quiet_since = seen, time.monotonic()
            quiet = time.monotonic() - quiet_since
            is_quiet = quiet > QUIET and (quiet > LONG_QUIET or not await self._waits_for_attempt())
            if is_quiet and (end_state := await self._stuck(document, nested)) is not None:
                return end_state
            await asyncio.sleep(0.1 if acted else 0.4)
        raise Fault(f"no rest after {limit:g} s: {last}")

    def _guard_rows(self) -> int:
        query = "select count(*) from saga_guard where saga_id = %s or starts_with(saga_id, %s)"
        places = ("bank", "till")
        return sum(self.stack.participants.run(place, query, self.id, f"{self.id}/")[0][0] for place in places)

    async def start_over(self) -> bool:
        """Start a saga again that has left nothing in a guard: it makes its calls again under their keys. It was not
        guarded, or its rows would be here unless they were purged.
        """
        kinds = {step.kind for _, step in self.saga.leaves()}
        if kinds != {"call"} or self.known_end is not None or self.count["over", self.id]:
            return False
        self.count["over", self.id] += 1
        await self.settled()
        return (await self.command("start", "outer", "--id", self.id)).code == 0

    def refuse(self, printed: Printed) -> str:
        """The end of a saga that has no run and cannot be started again. Raises Fault if that must not be."""
        is_open = any(self.stack.participants.present(self.saga, self.id).values())
        if self._guard_rows() and is_open and self.known_end is None and "saga " not in printed.text:
            raise Fault(f"open effects, and no advice: {printed.text}")
        return "refused"

    async def _act(self, document: dict[str, Any], nested: Iterable[dict[str, Any]], *, cancels: bool) -> bool:
        acted = False
        for each in (document, *nested):
            id = each["id"]
            if each is document or each["ended_at"] is None:
                for parked in each["parked"]:
                    acted = await self.decide(id, parked) or acted
            if each["state"] == "TERMINATED" and each is document and self.count["resumed", id] < 4:
                self.count["resumed", id] += 1
                printed = await self.command("resume", id, *WHO)
                acted = printed.code == 0 or await self.follow(id, printed.text) or acted
            stuck = "\n".join(each.get("stuck") or [])
            if stuck and not acted:
                acted = await self.follow(id, stuck) or acted
            waits = [row for row in each["steps"] if row["uses"] == "wait" and row["state"] == "RUNNING"]
            if waits and cancels and self.random.random() < 0.7:
                await self.command("cancel", self.id, *WHO)
                cancels, acted = False, True
            for row in waits:
                if self.count["signal", id, row["id"]] < 4:
                    self.count["signal", id, row["id"]] += 1
                    await self.command("signal", id, f"go-{row['id']}", *WHO)
                    acted = True
        return acted

    async def _waits_for_attempt(self) -> bool:
        """True if a run waits for an attempt, as for one whose worker was killed, until its timeout has passed."""
        for id in [*await self._open_runs(), *await self.stack.open_bulk_workflows()]:
            try:
                described = await self.stack.temporal.get_workflow_handle(id).describe()
            except RPCError:
                continue
            if described.raw_description.pending_activities:
                return True
        return False

    async def note_open_runs(self) -> None:
        for id in [*await self._open_runs(), *await self.stack.open_bulk_workflows()]:
            run = self.stack.temporal.get_workflow_handle(id)
            events: list[str] = []
            async for event in run.fetch_history_events():
                called = event.activity_task_scheduled_event_attributes.activity_type.name
                timer = event.timer_started_event_attributes.timer_id
                events.append(
                    f"{EventType.Name(event.event_type)[11:]}{called and ' ' + called}{timer and ' ' + timer}"
                )
            self.note(f"open: {id}: {', '.join(events)}")

    async def _open_runs(self) -> list[str]:
        running = f"{self.stack.own} AND ExecutionStatus = 'Running'"
        listed = [run.id async for run in self.stack.temporal.list_workflows(running)]
        return [id for id in listed if id.removesuffix("~undo") == self.id or id.startswith(f"{self.id}/")]

    async def _stuck(self, document: dict[str, Any] | None, nested: list[dict[str, Any]]) -> str | None:
        """The state of a saga that does not change; None if it has changed at last."""
        printed = await self.stack.command("list", "--stuck", "-o", "json")
        if printed.code or "bug in saga" in printed.err:
            raise Fault(f"list --stuck fails: {printed.text}")
        listed = {row["id"]: row["stuck"] for row in json.loads(printed.out)}
        self.note(f"stuck: {listed}")
        if self.id in listed or set(listed) & {each["id"] for each in nested}:
            return "stuck"
        if document is not None and document["state"] == "TERMINATED" and not await self._open_runs():
            return "TERMINATED"
        if _shape((await self.show(self.id))[0]) != _shape(document):
            return None
        await self.note_open_runs()
        if document is not None and document["state"] in ENDS:
            raise Fault(f"{document['state']}, and runs are open: {await self._open_runs()}")
        raise Fault(f"neither ends nor is stuck: {_shape(document)} {[_shape(each) for each in nested]}")


def _is_of(leaf: str, path: str) -> bool:
    """True if the effect is that of the step with this path, of an item of it, or of a saga that is nested there."""
    return leaf == path or leaf.startswith((f"{path}/", f"{path}#"))


def _shape(document: dict[str, Any] | None) -> Any:
    if document is None:
        return None
    rows = [(row["id"], row["state"]) for row in document["steps"]]
    parked = [(row["step"], row["op"], row["why"][:160]) for row in document["parked"]]
    return [document["id"], document["state"], rows, parked, document.get("stuck"), document.get("incomplete")]


def _short(printed: Printed) -> str:
    return " | ".join(line for line in printed.text.splitlines() if line.strip())[:700]
