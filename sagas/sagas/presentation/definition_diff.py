"""What a change of a definition means for new sagas and for running ones: the output of `saga diff`.

A running saga keeps the definition with which it started. So a change matters to new sagas, to what callers and events
may start, and to running sagas only by what the workers must still have for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

from sagas.builtins.registry import BUILTINS
from sagas.definition.model import Definition, Operation, StepDefinition, is_read
from sagas.definition.snapshot import replacement_refusal, to_snapshot
from sagas.definition.times import format_duration
from sagas.presentation.explain import KIND_DESCRIPTIONS, describe_commit_point

_DURATIONS = frozenset({"deadline", "warn_after", "timeout", "heartbeat"})

_GUARANTEES = ("at-least-once", "participant-keyed", "two-phase", "guarded")
"""From the weakest; the two strongest are equal to a saga."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference. ``step`` is None for a field of the saga itself; ``old`` and ``new`` are JSON, None: not there.

    ``meaning`` is a clause about new sagas; None for descriptive texts. ``attention``: new sagas promise less than old
    ones, may do something twice, or refuse what old ones accept.
    """

    step: str | None
    field: str
    old: Any
    new: Any
    meaning: str | None
    attention: bool = False

    def to_json(self) -> dict[str, Any]:
        """A row of `changes` in the JSON document of `saga diff`."""
        kind = "added" if self.old is None else "removed" if self.new is None else "changed"
        return {
            "step": self.step,
            "field": self.field,
            "change": kind,
            "old": self.old,
            "new": self.new,
            "new_sagas": self.meaning,
            "attention": self.attention,
        }


@dataclass(frozen=True, slots=True)
class DefinitionDiff:
    """The difference between two definitions.

    ``still_needed``: what only the old one names, and workers therefore need until its sagas have ended and can no
    longer be undone; lists of names under ``actions``, ``connections`` and ``task_queues``. ``why_not_replaced``: why a
    running saga cannot continue with the new definition (`saga resolve --definition`); None if it can.
    """

    old: Definition
    new: Definition
    changes: tuple[Change, ...]
    still_needed: Mapping[str, Sequence[str]]
    why_not_replaced: str | None

    @property
    def is_same(self) -> bool:
        """Sagas of both do the same, and are started by the same."""
        return all(change.meaning is None for change in self.changes)

    def to_json(self) -> dict[str, Any]:
        """The JSON document of `saga diff`."""
        return {
            "old": {"saga": self.old.saga, "digest": self.old.digest},
            "new": {"saga": self.new.saga, "digest": self.new.digest},
            "same": self.is_same,
            "changes": [change.to_json() for change in self.changes],
            "running_sagas": {
                "still_needed": {name: list(values) for name, values in self.still_needed.items()},
                "may_continue_with_new": self.why_not_replaced is None,
                "why_not": self.why_not_replaced,
            },
        }


def compare_definitions(old: Definition, new: Definition) -> DefinitionDiff:
    """Compare two definitions, both of the same project's actions and connections."""
    before, after = _names(old), _names(new)
    return DefinitionDiff(
        old,
        new,
        (*_saga_changes(old, new), *_step_changes(old, new)),
        {kind: sorted(before[kind] - after[kind]) for kind in before},
        replacement_refusal(old, to_snapshot(new)),
    )


def _names(definition: Definition) -> dict[str, set[str]]:
    steps = definition.steps
    operations = [
        *(one for step in steps for one in step.operations),
        *(step.probe.operation for step in steps if step.probe is not None),
        *(notification.do for notification in definition.notify),
    ]
    connections = {one.connection or (one.with_ or {}).get("connection") for one in operations}
    return {
        "actions": {one.uses for one in operations if one.uses not in BUILTINS},
        "connections": {one for one in connections if isinstance(one, str)},
        "task_queues": {one.task_queue for one in operations if one.task_queue is not None},
    }


# --- the saga itself -------------------------------------------------------------------------------------------------


def _saga_changes(old: Definition, new: Definition) -> Iterator[Change]:
    if old.saga != new.saga:
        why = "another saga: callers, triggers and filters name the new one, and both may run at once"
        yield Change(None, "saga", old.saga, new.saga, why, attention=True)
    if old.description != new.description:
        yield Change(None, "description", old.description or None, new.description or None, None)
    if old.id != new.id:
        why = "the same input gives another id, so a start or an event that is repeated runs a second saga"
        yield Change(None, "id", old.id, new.id, why, attention=True)
    yield from _input_changes(old.input, new.input)
    if (before := _commit_point(old)) != (now := _commit_point(new)):
        meaning = describe_commit_point(new)
        yield Change(None, "commit_point", before, now, meaning[:1].lower() + meaning[1:].rstrip("."), attention=True)
    for field, meaning, attention in _SAGA_FIELDS:
        before, now = _field(old, field), _field(new, field)
        if before != now:
            yield Change(None, field, before, now, meaning(before, now), attention(before, now))


def _commit_point(definition: Definition) -> str:
    return "start" if definition.recovery == "forward" else definition.pivot.id if definition.pivot else "end"


def _input_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    """The properties of the input, and the rest of its schema."""
    before, now = (_mapping(one.get("properties")) for one in (old, new))
    required, requires = (set(one.get("required") or ()) for one in (old, new))
    for name in dict.fromkeys((*before, *now)):
        became_required = name in requires - required
        if before.get(name) == now.get(name) and not became_required and name not in required - requires:
            continue
        meaning, attention = _input_meaning(name, before, now, became_required, new)
        old_value, new_value = before.get(name), now.get(name)
        if old_value == new_value:
            old_value, new_value = ("required" if name in one else "optional" for one in (required, requires))
        yield Change(None, f"input.{name}", old_value, new_value, meaning, attention)
    rest, rests = ({k: v for k, v in one.items() if k not in ("properties", "required")} for one in (old, new))
    others, other = (sorted(one - {*before, *now}) for one in (required, requires))
    if rest != rests or others != other:
        yield Change(None, "input", dict(old), dict(new), "inputs are checked by another schema", attention=True)


def _input_meaning(
    name: str, before: Mapping[str, Any], now: Mapping[str, Any], became_required: bool, new: Mapping[str, Any]
) -> tuple[str, bool]:
    if name not in now:
        refused = new.get("additionalProperties") is False
        return f"an input with {name} is {'refused' if refused else 'accepted, and nothing checks it'}", refused
    if became_required:
        return f"an input without {name} is refused", True
    if name not in before:
        return f"an input may have {name}", False
    if before[name] == now[name]:
        return f"an input without {name} is accepted", False
    return f"{name} is checked by another schema", True


_Meaning = Callable[[Any, Any], str]
_Attention = Callable[[Any, Any], bool]


def _never(_old: Any, _new: Any) -> bool:
    return False


def _always(_old: Any, _new: Any) -> bool:
    return True


def _says(text: str) -> _Meaning:
    return lambda _old, _new: text


def _duration_of(what: str, without: str) -> _Meaning:
    return lambda _old, new: without if new is None else what.format(new)


_SAGA_FIELDS: Sequence[tuple[str, _Meaning, _Attention]] = (
    ("output", _says("callers get another output"), _always),
    ("labels", _says("filters by label find them by the new labels only"), _never),
    ("deadline", _duration_of("they go back {} after their start", "they never go back by themselves"), _never),
    ("warn_after", _duration_of("they are overdue {} after their start", "they are never overdue"), _never),
    ("locks", _says("old and new sagas exclude each other only by the keys that both lock"), _always),
    ("notify", _says("others are notified, or otherwise"), _never),
    (
        "triggers",
        _says("`saga trigger` starts them from other events, from its next start; the offsets of a topic stay"),
        lambda old, _new: bool(old),
    ),
)


# --- steps -----------------------------------------------------------------------------------------------------------


def _step_changes(old: Definition, new: Definition) -> Iterator[Change]:
    before, now = ({step.id: step for step in one.steps} for one in (old, new))
    for id in dict.fromkeys((*now, *before)):
        if id not in before:
            yield Change(id, "step", None, now[id].do.uses, f"they run it, {_role(now[id])}")
        elif id not in now:
            yield Change(id, "step", before[id].do.uses, None, "they do not run it", not is_read(before[id]))
        else:
            yield from _changes_of_step(before[id], now[id])


def _role(step: StepDefinition) -> str:
    after = f"after {', '.join(step.needs)}" if step.needs else "from the start"
    return f"{after}: {KIND_DESCRIPTIONS[step.kind]}"


def _changes_of_step(old: StepDefinition, new: StepDefinition) -> Iterator[Change]:
    for field, value, meaning, attention in _STEP_FIELDS:
        before, now = _json(value(old)), _json(value(new))
        if before != now:
            yield Change(new.id, field, before, now, meaning and meaning(before, now), attention(before, now))
    for name, operation in (("", _do), ("compensate.", _first_alternate), ("confirm.", _confirm)):
        if (was := operation(old)) is not None and (is_now := operation(new)) is not None:
            yield from _operation_changes(new.id, name, was, is_now)


def _do(step: StepDefinition) -> Operation:
    return step.do


def _first_alternate(step: StepDefinition) -> Operation | None:
    return None if step.compensate is None else step.compensate.alternates[0]


def _confirm(step: StepDefinition) -> Operation | None:
    return step.confirm


def _operation_changes(step: str, prefix: str, old: Operation, new: Operation) -> Iterator[Change]:
    for field, key, meaning in _OPERATION_FIELDS:
        before, now = _field(old, field), _field(new, field)
        if before != now:
            yield Change(step, prefix + key, before, now, meaning)


def _removed(_old: Any, new: Any) -> bool:
    return not new


def _weaker(old: str, new: str) -> bool:
    return _strength(new) < _strength(old)


def _strength(guarantee: str) -> int:
    return min(_GUARANTEES.index(guarantee), 2)


def _compensate_meaning(_old: Any, new: Any) -> str:
    return f"a failure undoes it by {', else by '.join(new)}" if new else "a failure does not undo it any more"


def _needs_meaning(_old: Any, new: Any) -> str:
    return f"it runs after {', '.join(new)}" if new else "it runs from the start"


def _guarantee_meaning(old: str, new: str) -> str:
    if _weaker(old, new):
        return "a repeated attempt, or one that is late, may have its effect once more"
    return "its effect is protected at least as well as before"


def _uses(operations: Sequence[Operation]) -> list[str]:
    return [one.uses for one in operations]


_STEP_FIELDS: Sequence[tuple[str, Callable[[StepDefinition], Any], _Meaning | None, _Attention]] = (
    ("name", lambda step: step.name, None, _never),
    ("kind", lambda step: step.kind, lambda _old, new: f"it is {_KINDS[new]}", _never),
    ("uses", lambda step: step.do.uses, lambda _old, new: f"{new} performs it", _never),
    ("needs", lambda step: sorted(step.needs), _needs_meaning, _never),
    ("if", lambda step: step.if_, _says("it is skipped under another condition"), _never),
    ("for_each", lambda step: step.for_each, _says("it runs for other items"), _never),
    ("max_parallel", lambda step: step.max_parallel, _says("another number of items runs at once"), _never),
    ("on_failure", lambda step: step.on_failure, lambda _old, new: f"its failure leads to `{new}`", _always),
    (
        "compensate",
        lambda step: None if step.compensate is None else _uses(step.compensate.alternates),
        _compensate_meaning,
        _removed,
    ),
    (
        "compensate.confirmed",
        lambda step: step.compensate and step.compensate.confirmed and step.compensate.confirmed.uses,
        lambda _old, new: f"after its confirm {new} undoes it" if new else "after its confirm nothing undoes it",
        _removed,
    ),
    (
        "confirm",
        lambda step: step.confirm and step.confirm.uses,
        lambda _old, new: f"the commit point makes it final by {new}" if new else "it is final as soon as it is done",
        _always,
    ),
    (
        "probe",
        lambda step: step.probe,
        lambda _old, new: "unknown attempts are looked up otherwise" if new else "unknown attempts are not looked up",
        _removed,
    ),
    ("savepoint", lambda step: step.savepoint, _says("a later failure goes back to another point"), _never),
    ("guarantee", lambda step: step.guarantee, _guarantee_meaning, _weaker),
    ("execution", lambda step: step.execution, _says("it runs in another kind of activity"), _never),
    ("settle", lambda step: format_duration(step.settle), _says("an attempt may settle for another time"), _never),
    ("priority", lambda step: step.priority, _says("the task queue gives it another priority"), _never),
    ("fairness_key", lambda step: step.fairness_key, _says("the task queue shares its capacity otherwise"), _never),
)

_KINDS = {
    "compensatable": "undone after a failure",
    "pivot": "the point of no return",
    "retriable": "retried until it is done",
    "read": "without effect",
}

_OPERATION_FIELDS = (
    ("with_", "with", "it gets other arguments"),
    ("connection", "connection", "its effect and its guard row are in another database"),
    ("task_queue", "task_queue", "other workers perform it"),
    ("timeout", "timeout", "an attempt may take another time"),
    ("heartbeat", "heartbeat", "a silent attempt is given up after another time"),
    ("retry", "retry", "it is retried otherwise"),
    ("idempotent", "idempotent", "its participant promises something else about repeated keys"),
)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _field(owner: Definition | StepDefinition | Operation, name: str) -> Any:
    """A field as JSON; durations as the language writes them."""
    value = getattr(owner, name)
    return format_duration(value) if name in _DURATIONS and value is not None else _json(value)


def _json(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _json(asdict(value))
    if isinstance(value, list | tuple):
        return [_json(one) for one in value] or None
    if isinstance(value, Mapping):
        return {str(key).rstrip("_"): _json(one) for key, one in value.items()} or None
    return value
