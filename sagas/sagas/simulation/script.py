"""The script of a simulated run (outcomes, results, signals, cancel), its environment, and its result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sagas.actions.registry import result_schema
from sagas.definition.model import Definition
from sagas.errors import UsageError, nearest
from sagas.project import Project

OUTCOME_WORDS = ("done", "rejected", "failed", "unknown", "crash after effect", "late")
"""The outcomes of a call. ``failed`` and ``unknown``: without an effect, in every attempt. ``crash after effect``: the
effect happens and the response is lost. ``late``: there is no response, and the attempt arrives after all others."""

OPERATION_SUFFIXES = ("undo", "confirm")
"""``charge`` is the step itself, ``charge/undo`` its undo, ``charge/confirm`` its confirm."""


@dataclass(frozen=True, slots=True)
class Script:
    """The script of one run. Keys are step ids or entry ids (``reserve``, ``reserve#1``), which take precedence.

    ``outcomes``: one outcome for every call before the commit point (past it, where the engine retries without limit,
    for the first call), or a list of outcomes for consecutive calls, followed by ``done``. Steps of a nested saga are
    written ``buy/charge``. ``results``: results of steps; a nested saga with a result is not run. ``signals``: the data
    that a wait receives, by the signal's name. ``cancel_at`` and ``deadline_at`` name a step; the cancel or the
    deadline occurs while it is in flight. ``input_is_sample``: the input is generated, so a nested saga whose input is
    not valid counts as done. ``locked``: another saga holds the locks of this one. ``undo_at_end``: once COMPLETED, the
    saga is undone as by `saga undo`, unless it cannot be.
    """

    outcomes: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)
    signals: Mapping[str, Any] = field(default_factory=dict)
    cancel_at: str | None = None
    deadline_at: str | None = None
    input_is_sample: bool = False
    locked: bool = False
    undo_at_end: bool = False

    @property
    def with_input(self) -> str:
        """The input in messages: one that nobody has given is not to blame."""
        return "with the sample input that was generated from its schema" if self.input_is_sample else "with this input"

    def with_outcomes(self, outcomes: Mapping[str, str | Sequence[str]]) -> Script:
        """The script with more outcomes."""
        return replace(self, outcomes={**self.outcomes, **outcomes})

    def outcome_of_call(self, path: str, entry: str, suffix: str, call_number: int, *, without_limit: bool) -> str:
        """The outcome of call ``call_number`` (from 0); ``without_limit``: the engine retries it without limit."""
        for name in _keys_of(path, entry):
            outcomes = self.outcomes.get(name + suffix)
            if isinstance(outcomes, str):
                return "done" if without_limit and call_number and outcomes != "rejected" else outcomes
            if outcomes is not None:
                return outcomes[call_number] if call_number < len(outcomes) else "done"
        return "done"

    def result(self, path: str, entry: str) -> tuple[bool, Any]:
        """Return whether the script gives a result for this entry, and that result."""
        for name in _keys_of(path, entry):
            if name in self.results:
                return True, self.results[name]
        return False, None

    def validate(self, definition: Definition, others: Iterable[Definition] = ()) -> None:
        """Check the script. Raises UsageError for an unknown outcome, step or signal, and an item of a step without.

        ``others``: further sagas, with which it may share its results and signals.
        """
        others = tuple(others)
        steps = [step.id for step in definition.steps]
        for key, outcomes in self.outcomes.items():
            for outcome in [outcomes] if isinstance(outcomes, str) else outcomes:
                if outcome not in OUTCOME_WORDS:
                    raise UsageError(f"{outcome!r} is not an outcome; outcomes are {', '.join(OUTCOME_WORDS)}")
            self._check_step(_without_operation(key), steps, definition.saga)
        elsewhere = {step.id for other in others for step in other.steps}
        for key in self.results:
            if _step_of(key) not in elsewhere:
                self._check_step(key, steps, definition.saga)
        for target in (self.cancel_at, self.deadline_at):
            if target is not None:
                self._check_step(target, steps, definition.saga)
        single = {step.id for step in definition.steps if step.for_each is None}
        for step, name in self._named_items():
            if step in single:
                raise UsageError(f"{step} of {definition.saga} has no `for_each`, so there is no {name}")
        self._check_signals(definition, others)

    def check_items(self, steps: Sequence[Mapping[str, Any]]) -> None:
        """Check the items that the script names, by the ``steps`` of the `saga show` document of its run.

        Raises UsageError for one that does not exist. Nothing is known of a step that was not reached.
        """
        entries: dict[str, list[str]] = {}
        for row in steps:
            if row["id"] != row["step"] or row["state"] != "PENDING":
                entries.setdefault(row["step"], []).append(row["id"])
        for step, name in self._named_items():
            if step in entries and name not in entries[step]:
                count = sum("#" in id for id in entries[step])
                raise UsageError(f"there is no {name}: {step} had {count} items {self.with_input}, numbered from 0")

    def _named_items(self) -> Iterator[tuple[str, str]]:
        """The items to which the script makes something happen, each with its step; tests may share results."""
        targets = [target for target in (self.cancel_at, self.deadline_at) if target is not None]
        for key in (*map(_without_operation, self.outcomes), *targets):
            name = key.split("/")[0]
            if "#" in name:
                yield name.partition("#")[0], name

    def _check_signals(self, definition: Definition, others: Iterable[Definition]) -> None:
        steps = [step for saga in (definition, *others) for step in saga.steps]
        waits = [step.do.with_ or {} for step in steps if step.do.uses == "wait"]
        names = [str(arguments["signal"]) for arguments in waits if "signal" in arguments]
        if any("${{" in name for name in names):
            return  # its signal may have any name
        for name in self.signals:
            if name not in names:
                near = nearest(name, names)
                hint = f"; did you mean {near}?" if near else f"; the signals are {', '.join(names)}" if names else ""
                raise UsageError(f"no `wait` of {definition.saga} receives the signal {name}{hint}")

    @staticmethod
    def _check_step(name: str, steps: list[str], saga: str) -> None:
        step = _step_of(name)
        if step not in steps:
            near = nearest(step, steps)
            hint = f"; did you mean {near}?" if near else f"; its steps are {', '.join(steps)}"
            raise UsageError(f"{saga} has no step {step}{hint}")


def _step_of(name: str) -> str:
    return name.split("/")[0].partition("#")[0]


def _without_operation(key: str) -> str:
    name, slash, last = key.rpartition("/")
    return name if slash and last in OPERATION_SUFFIXES else key


def _keys_of(path: str, entry: str) -> tuple[str, ...]:
    step = entry.partition("#")[0]
    return (path + entry,) if step == entry else (path + entry, path + step)


def names_entry(target: str | None, path: str, entry: str) -> bool:
    """True when ``target`` names this entry."""
    return target is not None and target in _keys_of(path, entry)


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment of a run: the project's other definitions, ``[vars]``, and the result schemas of its actions."""

    definitions: Mapping[str, Definition] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)
    result_schemas: Mapping[str, Any] = field(default_factory=dict)
    """JSON Schema of the result, by the action's name."""


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """The end of a simulated run. ``undone``: entry ids in the order undone; those of nested sagas as ``buy/charge``.

    ``residue``: the residue of the saga, and what its participants find: effects that stay although the saga is
    COMPENSATED, or are missing although it is COMPLETED. ``document`` is the `saga show` document.
    """

    state: str
    undone: list[str]
    residue: list[dict[str, Any]]
    document: dict[str, Any]
    parked: list[dict[str, Any]]
    notifications: list[dict[str, Any]] = field(default_factory=list)
    """The notifications in order: ``id``, ``when``, ``uses``, ``with``; ``problem``: why it could not be evaluated.
    They are not delivered. Those of nested sagas are not included."""

    @property
    def output(self) -> Any:
        return self.document["output"]

    @property
    def reason(self) -> dict[str, Any] | None:
        return self.document["reason"]

    @property
    def steps(self) -> list[dict[str, Any]]:
        return self.document["steps"]


def environment_of(project: Project) -> Environment:
    """The environment of a project: its definitions, its ``[vars]``, and the result schemas of its actions."""
    schemas = {name: result_schema(action) for name, action in project.actions.items()}
    declared = {name: schema for name, schema in schemas.items() if schema is not None}
    return Environment(project.definitions, project.settings.vars, declared)
