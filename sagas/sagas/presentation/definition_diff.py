"""The consequences of a changed definition for new sagas and for running ones: the output of `saga diff`.

A running saga keeps the definition with which it started. So a change matters to new sagas, to what callers and events
may start, and to running sagas only by what must still be there for them.

Values are compared in the form in which the digest contains them, so that definitions with different digests differ
here, and those with equal digests do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from sagas.builtins.registry import BUILTINS
from sagas.definition.digest import normalized_expressions
from sagas.definition.model import Definition, KafkaTrigger, Operation, StepDefinition, is_nested, is_read
from sagas.definition.replacement import replacement_refusal
from sagas.definition.snapshot import to_snapshot
from sagas.definition.times import format_duration
from sagas.presentation.explain import describe_commit_point, describe_kind
from sagas.presentation.input_diff import differ, input_changes


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

    ``still_needed``: what only the old one names, and must therefore be there until its sagas have ended and can no
    longer be undone; names under ``actions``, ``connections``, ``task_queues``, ``sagas`` (nested ones) and ``signals``
    (of triggers). ``why_not_replaced``: why a running saga cannot continue with the new definition
    (`saga resolve --definition`); None if it can.
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
    """Compare two definitions, both checked against the same project."""
    changes = [*_saga_changes(old, new), *_step_changes(old, new)]
    if old.digest != new.digest and all(change.meaning is None for change in changes):
        meaning = "they differ in something that has no row of its own"
        changes.append(Change(None, "digest", old.digest, new.digest, meaning, attention=True))
    needed_before, needed_now = needed_names(old), needed_names(new)
    return DefinitionDiff(
        old,
        new,
        tuple(changes),
        {kind: sorted(names - needed_now[kind]) for kind, names in needed_before.items()},
        None if old.digest == new.digest else replacement_refusal(old, to_snapshot(new)),
    )


_OF_THE_ENGINE = ("sql.", "outbox.", "kafka.", "spark.", "saga.")
"""Beginnings of the names of operations that the engine adds to a step."""


def needed_names(definition: Definition) -> dict[str, set[str]]:
    """The names that must be there for sagas of a definition, by kind: see :class:`DefinitionDiff`."""
    steps = definition.steps
    operations = [
        *(operation for step in steps for operation in step.operations),
        *(step.probe.operation for step in steps if step.probe is not None),
        *(notification.do for notification in definition.notify),
    ]
    actions = {
        operation.uses
        for operation in operations
        if operation.uses not in BUILTINS and not operation.uses.startswith(_OF_THE_ENGINE)
    }
    named = {
        name for operation in operations if operation.uses in BUILTINS for name in _connections_in(operation.with_)
    }
    nested = {str((step.do.with_ or {}).get("name")) for step in steps if is_nested(step)}
    return {
        "actions": actions,
        "connections": {operation.connection for operation in operations if operation.connection is not None} | named,
        "task_queues": {operation.task_queue for operation in operations if operation.task_queue is not None},
        "sagas": {name for name in nested if "${{" not in name},
        "signals": {trigger.signal for trigger in definition.triggers if trigger.signal is not None},
    }


def _connections_in(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        name = value.get("connection")
        if isinstance(name, str) and "${{" not in name:
            yield name
        value = list(value.values())
    for item in value if isinstance(value, list) else ():
        yield from _connections_in(item)


_DURATIONS = frozenset({"deadline", "warn_after", "timeout", "heartbeat", "settle"})


def _to_json(value: Any) -> Any:
    """A field as JSON: of a part of the definition what differs from its default, with the names of the language."""
    if is_dataclass(value) and not isinstance(value, type):
        default = {field.name: field.default for field in fields(value)}
        values = {name: getattr(value, name) for name in default}
        return {
            name.removesuffix("_"): _to_json(item)
            for name, item in values.items()
            if type(item) is not type(default[name]) or item != default[name]
        }
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    return value


def _field(owner: Definition | StepDefinition | Operation, name: str) -> Any:
    """A field as JSON; durations as the language writes them."""
    value = getattr(owner, name)
    return format_duration(value) if name in _DURATIONS and value is not None else _to_json(value)


def _differ(old: Any, new: Any) -> bool:
    """The value as JSON; spaces around an expression do not count."""
    return differ(normalized_expressions(old), normalized_expressions(new))


_Meaning = Callable[[Any, Any], str]
_Attention = Callable[[Any, Any], bool]


def _never(_old: Any, _new: Any) -> bool:
    return False


def _always(_old: Any, _new: Any) -> bool:
    return True


def _text(meaning: str) -> _Meaning:
    return lambda _old, _new: meaning


def _after(what: str, never: str) -> _Meaning:
    return lambda _old, new: never if new is None else what.format(new)


def _saga_changes(old: Definition, new: Definition) -> Iterator[Change]:
    if old.saga != new.saga:
        meaning = "it is a different saga: callers, triggers and filters name the new one, and both may run at once"
        yield Change(None, "saga", old.saga, new.saga, meaning, attention=True)
    if old.description != new.description:
        yield Change(None, "description", old.description or None, new.description or None, None)
    if _differ(old.id, new.id):
        meaning = "the same input gives a different id, so a start or an event that is repeated runs a second saga"
        yield Change(None, "id", old.id, new.id, meaning, attention=True)
    for change in input_changes(old.input, new.input):
        yield Change(None, *change)
    if (point := _commit_point(old)) != (new_point := _commit_point(new)):
        meaning = describe_commit_point(new)
        meaning = meaning[:1].lower() + meaning[1:].rstrip(".")
        yield Change(None, "commit_point", point, new_point, meaning, attention=True)
    for field, meaning_of, needs_attention in _SAGA_FIELDS:
        value, new_value = _field(old, field), _field(new, field)
        if _differ(value, new_value):
            meaning, attention = meaning_of(value, new_value), needs_attention(value, new_value)
            if field in ("labels", "notify"):  # empty where there are none
                value, new_value = value or None, new_value or None
            yield Change(None, field, value, new_value, meaning, attention)
    yield from _trigger_changes(old.triggers, new.triggers)
    schedule, new_schedule = _to_json(old.schedule), _to_json(new.schedule)
    if _differ(schedule, new_schedule):
        meaning = "they start at other times, or with another input, once `saga setup` has run"
        if new_schedule is None:
            meaning = "they are refused at the times of the schedule, until `saga setup` has removed it"
        yield Change(None, "schedule", schedule, new_schedule, meaning, attention=schedule is not None)


def _commit_point(definition: Definition) -> str:
    if definition.recovery == "forward":
        return "the start"
    return definition.pivot.id if definition.pivot else "the end"


def _trigger_changes(old: Sequence[KafkaTrigger], new: Sequence[KafkaTrigger]) -> Iterator[Change]:
    for field, signals in (("triggers", False), ("triggers (signals)", True)):
        value, new_value = (
            [_to_json(trigger) for trigger in triggers if (trigger.signal is not None) == signals]
            for triggers in (old, new)
        )
        if _differ(value, new_value):
            what = "signals them for different events" if signals else "starts them for different events"
            meaning = f"`saga trigger` {what} from its next start on; the offsets of a topic stay"
            yield Change(None, field, value or None, new_value or None, meaning, attention=bool(value))


def _locks_meaning(old: Any, new: Any) -> str:
    if old and new and not _differ(old["keys"], new["keys"]):
        return "they wait for the locks, or hold them, for a different time"
    return "old and new sagas exclude each other only by the keys that both lock"


def _different_keys(old: Any, new: Any) -> bool:
    return not (old and new) or _differ(old["keys"], new["keys"])


_SAGA_FIELDS: Sequence[tuple[str, _Meaning, _Attention]] = (
    ("output", _text("callers get a different output"), _always),
    ("labels", _text("filters by label find them by the new labels only"), _never),
    ("deadline", _after("unless committed, they go back {} after their start", "no deadline leads them back"), _never),
    ("warn_after", _after("they are overdue {} after their start", "they are never overdue"), _never),
    ("locks", _locks_meaning, _different_keys),
    ("notify", _text("different notifications are sent"), _never),
)


def _step_changes(old: Definition, new: Definition) -> Iterator[Change]:
    steps, new_steps = ({step.id: step for step in definition.steps} for definition in (old, new))
    for id in dict.fromkeys((*new_steps, *steps)):
        if id not in steps:
            yield Change(id, "step", None, new_steps[id].do.uses, f"they run it, {_place(new_steps[id])}")
        elif id not in new_steps:
            yield Change(id, "step", steps[id].do.uses, None, "they do not run it", not is_read(steps[id]))
        else:
            yield from _changes_of_step(steps[id], new_steps[id])


def _place(step: StepDefinition) -> str:
    after = f"after {', '.join(step.needs)}" if step.needs else "from the start"
    return f"{after}: {describe_kind(step)}"


def _changes_of_step(old: StepDefinition, new: StepDefinition) -> Iterator[Change]:
    for field, value_of, meaning_of, needs_attention in _STEP_FIELDS:
        value, new_value = _to_json(value_of(old)), _to_json(value_of(new))
        if _differ(value, new_value):
            meaning = None if meaning_of is None else meaning_of(value, new_value)
            if field == "compensate" and new_value is None and is_nested(new):
                meaning, attention = "a failure undoes it by the nested saga's own undo", False
            else:
                attention = needs_attention(value, new_value)
            yield Change(new.id, field, value, new_value, meaning, attention)
    operations, new_operations = _operations(old), _operations(new)
    for name, operation in operations.items():
        if name in new_operations:
            yield from _operation_changes(new.id, name, operation, new_operations[name])


def _operations(step: StepDefinition) -> dict[str, Operation]:
    """The operations of a step, by the prefix of their fields."""
    operations = {"": step.do}
    if step.compensate is not None:
        for number, alternate in enumerate(step.compensate.alternates):
            operations[f"compensate.{number}." if number else "compensate."] = alternate
        if step.compensate.confirmed is not None:
            operations["compensate.confirmed."] = step.compensate.confirmed
    if step.confirm is not None:
        operations["confirm."] = step.confirm
    if step.probe is not None:
        operations["probe."] = step.probe.operation
    return operations


def _operation_changes(step: str, prefix: str, old: Operation, new: Operation) -> Iterator[Change]:
    for field, meaning_of, needs_attention in _OPERATION_FIELDS:
        value, new_value = _field(old, field), _field(new, field)
        if _differ(value, new_value):
            meaning, attention = meaning_of(value, new_value), needs_attention(value, new_value)
            yield Change(step, prefix + field.removesuffix("_"), value, new_value, meaning, attention)


_GUARANTEES = {"at-least-once": 0, "participant-keyed": 1, "two-phase": 2, "guarded": 2}
_KINDS = {
    "compensatable": "undone after a failure",
    "pivot": "the point of no return",
    "retriable": "retried until it is done",
    "read": "without effect",
}
_FAILURES = {
    "compensate": "its failure starts the rollback",
    "park": "its failure waits for an operator",
    "continue": "its failure is passed over",
}


def _is_weaker(old: str, new: str) -> bool:
    return _GUARANTEES[new] < _GUARANTEES[old]


def _guarantee_meaning(old: str, new: str) -> str:
    if _is_weaker(old, new):
        return "a repeated attempt, or one that is late, may have its effect once more"
    return "its effect is protected at least as well as before"


def _compensate_meaning(_old: Any, new: Any) -> str:
    return f"a failure undoes it by {', else by '.join(new)}" if new else "a failure does not undo it any more"


def _has_fewer(old: Any, new: Any) -> bool:
    return len(new or ()) < len(old or ())


def _is_gone(_old: Any, new: Any) -> bool:
    return not new


def _connection_meaning(old: Any, new: Any) -> str:
    if new is None:
        return "no guard row protects its effect any more"
    return (
        "a guard row protects its effect" if old is None else "its effect and its guard row are in a different database"
    )


def _idempotent_meaning(_old: Any, new: bool) -> str:
    return "its participant recognises a repeated key" if new else "its participant may have the effect of a key twice"


def _remembers_meaning(_old: Any, new: bool) -> str:
    return (
        "its rejection holds for every attempt"
        if new
        else "its rejection after an attempt without an answer is not believed"
    )


def _for_each_meaning(old: Any, new: Any) -> str:
    return (
        "it runs once"
        if new is None
        else "it runs once for each item"
        if old is None
        else "it runs for different items"
    )


_STEP_FIELDS: Sequence[tuple[str, Callable[[StepDefinition], Any], _Meaning | None, _Attention]] = (
    ("name", lambda step: step.name, None, _never),
    ("kind", lambda step: step.kind, lambda _old, new: f"it is {_KINDS[new]}", _never),
    ("uses", lambda step: step.do.uses, lambda _old, new: f"{new} performs it", _never),
    (
        "needs",
        lambda step: tuple(sorted(step.needs)),
        lambda _old, new: f"it runs after {', '.join(new)}" if new else "it runs from the start",
        _never,
    ),
    ("if", lambda step: step.if_, _text("it is skipped under a different condition"), _never),
    ("for_each", lambda step: step.for_each, _for_each_meaning, _never),
    ("max_parallel", lambda step: step.max_parallel, _text("a different number of items runs at once"), _never),
    ("on_failure", lambda step: step.on_failure, lambda _old, new: _FAILURES[new], _always),
    (
        "compensate",
        lambda step: (
            None if step.compensate is None else tuple(alternate.uses for alternate in step.compensate.alternates)
        ),
        _compensate_meaning,
        _has_fewer,
    ),
    (
        "compensate.confirmed",
        lambda step: step.compensate and step.compensate.confirmed and step.compensate.confirmed.uses,
        lambda _old, new: f"after its confirm {new} undoes it" if new else "after its confirm nothing undoes it",
        _is_gone,
    ),
    (
        "compensate.always",
        lambda step: step.compensate is not None and step.compensate.always,
        lambda _old, new: f"it is undone {'also' if new else 'not'} after a rejection or a failure",
        _always,
    ),
    (
        "confirm",
        lambda step: step.confirm and step.confirm.uses,
        lambda _old, new: f"the commit point makes it final by {new}" if new else "nothing makes it final",
        _always,
    ),
    (
        "probe",
        lambda step: step.probe and (step.probe.operation.uses, step.probe.done, step.probe.absent, step.probe.result),
        lambda _old, new: f"{new[0]} looks up unknown attempts" if new else "unknown attempts are not looked up",
        _is_gone,
    ),
    (
        "savepoint",
        lambda step: step.savepoint,
        lambda old, new: (
            "a later failure goes back beyond it"
            if new is None
            else "a later failure stops there"
            if old is None
            else "a later failure is repeated a different number of times, or later"
        ),
        _never,
    ),
    ("guarantee", lambda step: step.guarantee, _guarantee_meaning, _is_weaker),
    ("execution", lambda step: step.execution, lambda _old, new: f"it runs in a {new} activity", _never),
    (
        "settle",
        lambda step: format_duration(step.settle),
        _text("unknown attempts settle for a different time"),
        _never,
    ),
    ("priority", lambda step: step.priority, _text("the task queue gives it a different priority"), _never),
    ("fairness_key", lambda step: step.fairness_key, _text("the task queue shares its capacity differently"), _never),
)

_OPERATION_FIELDS: Sequence[tuple[str, _Meaning, _Attention]] = (
    ("with_", _text("it gets different arguments"), _never),
    ("connection", _connection_meaning, _is_gone),
    ("task_queue", _text("workers of a different task queue perform it"), _never),
    ("timeout", _text("an attempt may take a different time"), _never),
    ("heartbeat", _text("a silent attempt is given up after a different time"), _never),
    ("retry", _text("it is retried differently"), _never),
    ("idempotent", _idempotent_meaning, _is_gone),
    ("remembers_rejections", _remembers_meaning, _is_gone),
    ("rejects", lambda _old, new: "it may reject" if new else "it never rejects", _never),
    ("seals", lambda _old, new: "its answer seals the key" if new else "its answer does not seal the key", _is_gone),
    ("two_phase", _text("its transaction is prepared, or committed, at a different time"), _always),
    ("images", _text("its rows are undone in a different way"), _always),
    ("holds", _text("its held events are published at a different time"), _always),
    ("local", _text("it is registered in a different place"), _never),
)
