"""The happy path: what the machines of most sagas of a bulk workflow decide alike is decided once.

As long as every call is done at its first attempt, the decisions of a machine depend on the definition and on the
times of the events, not on inputs and results; :func:`why_not_on_happy_path` names the definitions for which that does
not hold. So the machine handles each event for one saga only, and its commands and its state, a :class:`PathPoint`,
serve all others with the same events. What depends on a saga's own values is computed for each: arguments, keys, sizes
of results, the output.

Whatever else happens to a saga, it gets a machine of its own, restored from the state of its point with its own values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any

from sagas.bulk.batchable import why_no_member, why_not_batchable
from sagas.definition.analysis.step_graph import ExecutionPlan
from sagas.definition.model import ENGINE_ACTIONS, Definition
from sagas.expressions.limits import WorkMeter
from sagas.input_limits import MAX_TASK_STEPS
from sagas.machine import state_budget
from sagas.machine.expressions import arguments, context, expression_fields
from sagas.machine.expressions.evaluation import DefinitionError
from sagas.machine.machine import Machine
from sagas.machine.origin import build_origin
from sagas.machine.snapshot import expand
from sagas.protocol.messages import (
    Call,
    CallEnded,
    CancelTimer,
    Command,
    Finish,
    GuardSpec,
    MachineEvent,
    RecordState,
    Started,
    StartTimer,
)
from sagas.protocol.origin import Origin
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import idempotency_key
from sagas.protocol.size_limits import is_omitted

WHOLE_SAGA_TIMERS = frozenset({"deadline", "warn_after"})
"""Timers that run in parallel with the steps: nothing waits for them."""


def why_not_on_happy_path(definition: Definition) -> str | None:
    """Why the machines of a definition may decide differently on the happy path; None if they cannot."""
    if (why := why_no_member(definition)) is not None:
        return why
    for step in definition.steps:
        if step.if_ is not None or step.for_each is not None or step.do.uses in ENGINE_ACTIONS:
            return f"{step.id} depends on values or waits"
        if step.confirm is not None or step.savepoint is not None or step.fairness_key is not None:
            return f"{step.id} has more than one call, or one of a special kind"
        if (why := why_not_batchable(step)) is not None:
            return why
    return None


@dataclass(frozen=True, slots=True)
class _StepState:
    """A step in the state of a point: its record, and its entry (None if it has not begun), without a saga's own
    values.

    ``keeps_arguments``: the state contains the arguments of the step.
    """

    id: str
    record: Mapping[str, Any]
    entry: Mapping[str, Any] | None
    keeps_arguments: bool


@dataclass(frozen=True, slots=True)
class PathPoint:
    """A point that all sagas reach with the same events: the commands of the last event, and the state, both without
    the values of one saga."""

    commands: tuple[Command, ...]
    state: Mapping[str, Any]
    steps: tuple[_StepState, ...]
    next: dict[tuple[str, float], PathPoint] = field(default_factory=dict)
    """The point after one more event, by the call that is done, and the time."""


class HappyPath:
    """The points of one definition that sagas of a bulk workflow have reached."""

    def __init__(self, definition: Definition, plan: ExecutionPlan, variables: Mapping[str, Any]) -> None:
        self.definition = definition
        self.plan = plan
        self.variables = variables
        self.begins: dict[tuple[float, int], PathPoint] = {}
        """The first points, by the time of the start and the generation."""


class HappyPathSaga:
    """One saga on the happy path. A machine would be in the same state, and give the same commands."""

    __slots__ = (
        *("_arguments", "_generation", "_input", "_kept_bytes", "_origin", "_output", "_path", "_rooms", "_saga"),
        *("_values",),
        "point",
    )

    def __init__(self, path: HappyPath, saga_id: str, input: Any, generation: int) -> None:
        self.point: PathPoint | None = None
        """The point that the saga has reached; None before the start."""
        self._path = path
        self._input = input
        self._generation = generation
        self._saga: dict[str, Any] = {"id": saga_id}
        self._kept_bytes = 0
        self._rooms: dict[str, int] = {}
        """The rest that calls in flight are promised for results, see :mod:`sagas.machine.result_rooms`."""
        self._origin: Origin | None = None
        self._values: dict[str, dict[str, Any]] = {}
        """The value of ``steps`` in expressions."""
        self._arguments: dict[str, dict[str, Any]] = {}
        self._output: Any = None

    @property
    def state(self) -> str:
        return "RUNNING" if self.point is None else self.point.state["state"]

    @property
    def started_at(self) -> float | None:
        return None if self.point is None else self.point.state["started_at"]

    @property
    def ended_at(self) -> float | None:
        return None if self.point is None else self.point.state.get("ended_at")

    @property
    def highest_generation(self) -> int:
        return self._generation

    paused = False

    def origin(self) -> Origin:
        """The start of the saga, as :meth:`Machine.origin` gives it. Its digest is computed once."""
        if self._origin is None:
            path, started_at = self._path, self.started_at
            assert started_at is not None
            self._origin = build_origin(
                path.definition, path.plan, path.variables, self._input, started_at, generation=self._generation
            )
        return self._origin

    # --- events ------------------------------------------------------------------------------------------------

    def next(self, event: MachineEvent, work: WorkMeter) -> Sequence[Command] | None:
        """The commands for this event; None if nothing has changed, and the event is one for :meth:`machine`."""
        if work.exceeds(MAX_TASK_STEPS):
            return None  # a machine leaves the rest to a timer, also where no command would follow
        counted = work.steps, work.work
        commands = None
        if isinstance(event, CallEnded) and self.point is not None and _is_first_success(event):
            commands = self._call_done(self.point, event, work)
        elif isinstance(event, Started) and self.point is None:
            commands = self._begin(event, work)
        if commands is None:
            work.steps, work.work = counted  # the machine evaluates everything once more
        return commands

    def _begin(self, event: Started, work: WorkMeter) -> Sequence[Command] | None:
        begins, key = self._path.begins, (event.at, self._generation)
        point = begins.get(key) or self._explore(event)
        if point is None:
            return None
        begins[key] = point
        before, self._saga = self._saga, context.saga_names(self._path.definition, self._saga["id"], event.at)
        self._kept_bytes = state_budget.budgeted_size(self._input)
        commands = self._go_to(point, work)
        if commands is None:
            self._saga, self._kept_bytes, self._rooms = before, 0, {}
        return commands

    def _call_done(self, point: PathPoint, event: CallEnded, work: WorkMeter) -> Sequence[Command] | None:
        before, rooms = self._kept_bytes, self._rooms
        others = {id: room for id, room in rooms.items() if id != event.id}
        room = max(rooms.get(event.id, 0), state_budget.room_left(before, sum(others.values())))
        result, kept_bytes = state_budget.fit_into_budget(before, event.outcome.result, room)
        if is_omitted(result) or event.id in self._values:
            return None
        key = (event.id, event.at)
        next_point = point.next.get(key) or self._explore(event)
        if next_point is None:
            return None
        point.next[key] = next_point
        self._values[event.id] = {"result": result, "results": None, "state": "DONE"}
        self._kept_bytes, self._rooms = kept_bytes, others
        commands = self._go_to(next_point, work)
        if commands is None:
            del self._values[event.id]
            self._kept_bytes, self._rooms = before, rooms
        return commands

    def _go_to(self, point: PathPoint, work: WorkMeter) -> Sequence[Command] | None:
        made: dict[str, dict[str, Any]] = {}
        commands: list[Command] = []
        try:
            for command in point.commands:
                if work.exceeds(MAX_TASK_STEPS):
                    return None  # a machine leaves the rest to a timer
                commands.append(self._own(command, made, work))
        except DefinitionError:
            return None
        self.point = point
        self._arguments |= made
        return commands

    def _own(self, command: Command, made: dict[str, dict[str, Any]], work: WorkMeter) -> Command:
        """A command of the point with this saga's own values. Raises DefinitionError."""
        path = self._path
        if isinstance(command, Call):
            key = idempotency_key(self._saga["id"], command.entry, command.generation)
            names = {**self._names(), "step": context.step_names(key)}
            step = path.plan.steps[command.step]
            own = made[command.step] = arguments.render_forward_arguments(path.plan, work, step, names)
            call = _with_own_values(command, key, own, self._guard(command))
            texts = path.plan.sensitive_texts(self._input)
            return call if texts == call.sensitive_texts else replace(call, sensitive_texts=texts)
        if isinstance(command, Finish) and path.definition.output is not None:
            self._output = expression_fields.render_output(path.plan, work, path.definition, self._names())
            return Finish(command.state, command.committed, self._output, command.reason)
        return command

    def _guard(self, call: Call) -> GuardSpec | None:
        """The guard's part of a call, with the room that this saga has for its result."""
        guard = call.guard
        if guard is None:
            return None
        alone, promised = self._path.plan.is_alone(call.step), sum(self._rooms.values())
        room = state_budget.room_of_call(self._kept_bytes, promised, alone=alone)
        self._rooms[call.entry] = room
        return guard if guard.room == room else replace(guard, room=room)

    def _names(self) -> dict[str, Any]:
        return {"input": self._input, "steps": self._values, "vars": self._path.variables, "saga": self._saga}

    # --- the state ---------------------------------------------------------------------------------------------

    def compact_snapshot(self) -> dict[str, Any]:
        """The state, as :meth:`Machine.compact_snapshot` gives it."""
        if self.point is None:
            return self._new_machine().compact_snapshot()
        own = {**self.point.state, "input": self._input, "saga_id": self._saga["id"], "kept_bytes": self._kept_bytes}
        if self._rooms:
            own["result_rooms"] = dict(self._rooms)
        if self._output is not None:
            own["output"] = self._output
        own["steps"] = [self._own_step(step) for step in self.point.steps]
        return own

    def _own_step(self, step: _StepState) -> Mapping[str, Any]:
        if step.entry is None:
            return step.record
        entry = dict(step.entry)
        if step.keeps_arguments:
            entry["arguments"] = self._arguments[step.id]
        done = self._values.get(step.id)
        if done is not None and done["result"] is not None:
            entry["result"] = done["result"]
        return {**step.record, "entries": [entry]}

    def machine(self) -> Machine:
        """A machine for this saga alone, in the state that it has reached."""
        if self.point is None:
            return self._new_machine()
        path = self._path
        return Machine.restore(expand(self.compact_snapshot(), path.definition), path.plan)

    def _new_machine(self) -> Machine:
        path = self._path
        return Machine(
            path.definition,
            self._input,
            self._saga["id"],
            generation=self._generation,
            variables=path.variables,
            plan=path.plan,
        )

    def _explore(self, event: MachineEvent) -> PathPoint | None:
        """The next point, as the machine of this saga reaches it; None if it leaves the happy path."""
        machine = self.machine()
        commands = machine.next(event)
        state = machine.compact_snapshot()
        if not all(map(_is_usual, commands)) or not _is_happy(state):
            return None
        steps = tuple(map(_step_state, state["steps"]))
        shared = {name: value for name, value in state.items() if name not in _OWN_VALUES}
        return PathPoint(tuple(commands), shared, steps)


def _is_first_success(event: CallEnded) -> bool:
    outcome = event.outcome
    return event.attempts == 1 and outcome == Outcome.done(outcome.result, attempt=1)


_OWN_VALUES = frozenset({"input", "saga_id", "kept_bytes", "result_rooms", "output", "steps"})

_STATE = _OWN_VALUES | {
    *("version", "generation", "variables", "now", "timers", "flights", "state", "phase", "steps_open"),
    *("started_at", "committed_at", "ended_at", "deadline_at"),
}
_RECORD = frozenset({"id", "needs_open", "entries", "running", "closed", "settled", "begun"})
_ENTRY = frozenset(
    {
        *("id", "step", "generation", "state", "outcome", "result", "failure_kind", "attempts", "min_attempts"),
        *("arguments", "started_at", "ended_at", "last_attempt_ended_at", "flight", "undo"),
    }
)


def _is_usual(command: Command) -> bool:
    match command:
        case Call():
            return command.op == "do" and command.earlier_attempts == 0 and command.fairness_key is None
        case StartTimer() | CancelTimer():
            return command.id in WHOLE_SAGA_TIMERS
        case Finish() | RecordState():
            return command.state in ("COMMITTED", "COMPLETED") and command.reason is None
    return False


def _is_happy(state: Mapping[str, Any]) -> bool:
    """Every call has been done at its first attempt, or is in flight; nothing else has happened."""
    if not state.keys() <= _STATE or state["state"] not in ("RUNNING", "COMMITTED", "COMPLETED"):
        return False
    for record in state["steps"]:
        entries = record.get("entries", ())
        if not record.keys() <= _RECORD or len(entries) > 1:
            return False
        for entry in entries:
            if not entry.keys() <= _ENTRY or entry["state"] not in ("RUNNING", "DONE") or entry.get("undo"):
                return False
    return True


def _step_state(record: Mapping[str, Any]) -> _StepState:
    without = {name: value for name, value in record.items() if name != "entries"}
    if not record.get("entries"):
        return _StepState(record["id"], without, None, keeps_arguments=False)
    (entry,) = record["entries"]
    shared = {name: value for name, value in entry.items() if name not in ("arguments", "result")}
    return _StepState(record["id"], without, shared, "arguments" in entry)


_CALL_NAMES = [field.name for field in fields(Call)]
_KEY, _ARGUMENTS, _GUARD = map(_CALL_NAMES.index, ("key", "arguments", "guard"))
_call_values = attrgetter(*_CALL_NAMES)


def _with_own_values(call: Call, key: str, own_arguments: Mapping[str, Any], guard: GuardSpec | None) -> Call:
    """The call with another key, other arguments and guard; `replace` takes three times as long."""
    values = list(_call_values(call))
    values[_KEY], values[_ARGUMENTS], values[_GUARD] = key, own_arguments, guard
    return Call(*values)
