"""A saga definition after parsing: normalised, checked, immutable.

A definition contains everything that a run needs: durations are seconds, short forms are expanded, defaults are
applied, ``needs`` is explicit, and the facts about actions that decide what the engine may do (where the guard row is,
whether the participant honours the key) are copied in. It travels with the run, so a later change of a file or of an
action's decorator never changes a saga that has started.

Values that may contain ``${{ … }}`` expressions (``with_``, ``output``, ``labels`` …) are plain JSON with the
expressions in source form; sagas/expressions compiles and evaluates them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sagas.text.records import NOT_PACKED

StepState = Literal[
    "PENDING",
    "RUNNING",
    "DONE",
    "REJECTED",
    "FAILED",
    "UNKNOWN",
    "SKIPPED",
    "COMPENSATING",
    "COMPENSATED",
    "NOTHING_TO_UNDO",
    "CONFIRMING",
    "CONFIRMED",
    "PARKED",
]
StepKind = Literal["compensatable", "pivot", "retriable", "read"]
OnFailure = Literal["compensate", "park", "continue"]
Execution = Literal["remote", "local"]
Guarantee = Literal["guarded", "two-phase", "participant-keyed", "at-least-once"]
Overlap = Literal["skip", "buffer_one", "buffer_all", "allow_all", "cancel_other"]
"""The policy of a schedule for a time at which the saga of an earlier one still runs; the names are Temporal's."""

Milestone = Literal["completed", "compensated", "parked", "residue", "overdue"]
"""The events of a saga that can trigger a notification."""

NOTIFICATION_INTERVALS = (1.0, 5.0, 30.0, 300.0, 1800.0, 7200.0)
"""Default intervals in seconds between the attempts of a notification."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The retry policy of an operation. Times are in seconds.

    ``intervals`` replaces the exponential backoff: the waits before attempt 2, 3 …; the last one repeats.
    ``give_up_after`` limits the total time of all attempts.
    """

    max_attempts: int = 12
    initial_interval: float = 1.0
    backoff_coefficient: float = 2.0
    max_interval: float = 60.0
    give_up_after: float | None = None
    intervals: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """A call of a participant: a forward action, a compensation, a confirm or a probe.

    ``with_`` None is the short form: the argument values of the forward call, frozen when it was made.
    ``connection`` is the SQL connection whose database holds the guard row, None for an unguarded action.
    ``local`` is True if the action is registered in this project (a Python action, ``sql``, ``http``, …); otherwise the
    action is foreign: a worker, perhaps in another language, serves it on ``task_queue``.
    ``idempotent``: the participant honours the key. ``remembers_rejections``: after it has rejected a key, no attempt
    of that key has or will have an effect, so a rejection is definite whatever was sent before.
    ``seals``: a probe seals the key when it answers.
    ``holds`` (forward actions only): True if its events with `hold` wait for the commit point; False if they are
    published immediately, because the step does not run before the commit point; None if it has no such events.
    ``images`` (forward actions only): the rows that it changes are stored for `compensate: auto`.
    ``two_phase``: the effect is prepared, and committed at the commit point; the same for all operations of a step.
    ``own_retry``: ``retry`` is written at the operation, and not a default.
    """

    uses: str
    with_: Mapping[str, Any] | None = None
    timeout: float = 30.0
    heartbeat: float | None = None
    retry: Retry = field(default_factory=Retry)
    task_queue: str | None = None
    connection: str | None = None
    local: bool = True
    idempotent: bool = True
    remembers_rejections: bool = False
    rejects: bool = True
    seals: bool = False
    holds: bool | None = None
    images: bool = False
    two_phase: bool = False
    own_retry: bool = False

    @property
    def guarded(self) -> bool:
        """True if the effect and its guard row are written in one local transaction."""
        return self.connection is not None

    @property
    def system(self) -> str:
        """The place of its effect: a connection, that of `with` for `http`; else its task queue or its action."""
        written = (self.with_ or {}).get("connection") if self.uses == "http" else None
        return self.connection or (written if isinstance(written, str) else None) or self.task_queue or self.uses


@dataclass(frozen=True, slots=True)
class Compensation:
    """The compensation of a step: alternates in the order of their attempts.

    ``confirmed`` undoes the step after its confirm; without it a confirmed step cannot be undone.
    ``always``: it also runs for a step that was attempted and then rejected, or failed without an effect.
    """

    alternates: tuple[Operation, ...]
    confirmed: Operation | None = None
    always: bool = False


@dataclass(frozen=True, slots=True)
class Probe:
    """The way to find out whether an unknown attempt took effect.

    Without expressions the action itself returns Done(result), Absent or Unknown. Otherwise ``done`` and ``absent`` are
    CEL conditions over ``response`` (the action's result), and ``result`` gives the step's result if it is done.
    """

    operation: Operation
    done: str | None = None
    absent: str | None = None
    result: str | None = None


@dataclass(frozen=True, slots=True)
class Savepoint:
    """The step at which a later failure stops undoing, to run what follows once more.

    ``attempts`` counts all runs of what follows, the first included; ``wait`` is in seconds, before each further one.
    """

    attempts: int = 3
    wait: float = 0.0


LOCK_WAIT = 30.0
"""Default of `locks.wait`, in seconds."""


@dataclass(frozen=True, slots=True)
class Locks:
    """The semantic locks of a saga: it runs only while it holds all ``keys``, and another saga with one of them waits.

    ``keys`` is a list of strings or one expression for a list. ``connection`` is the database of the lock tables.
    ``wait`` is in seconds; 0: the saga does not wait. ``from_`` is the step before which they are taken; None: the
    first one. ``until``: they are released at the commit point, or when the saga is final.
    """

    keys: Any
    connection: str
    wait: float = LOCK_WAIT
    from_: str | None = None
    until: Literal["commit", "final"] = "final"


MIN_SETTLE = 60.0
"""Default of `settle`, in seconds, unless the step's `timeout` is long."""


def default_settle(timeout: float) -> float:
    """How long a late effect may still appear, unless the author says so.

    An attempt that ended for this side, be it at its timeout, may go on for the participant, whose patience is unknown.
    """
    return max(MIN_SETTLE, 2 * timeout)


@dataclass(frozen=True, slots=True)
class StepDefinition:
    """One step of the graph. ``needs`` is always explicit, even if the author left it out.

    ``commutative``: the author declares that the order relative to other sagas does not matter; nothing depends on it.
    ``undo_leaves``: tables and columns that its undo does not restore, for `saga verify-undo` alone.
    ``result_form`` is that of its action's result in commands for operators, if it is known not to be an object.
    """

    id: str
    name: str
    kind: StepKind
    do: Operation
    needs: tuple[str, ...] = ()
    if_: str | None = None
    for_each: Any = None
    max_parallel: int = 1
    on_failure: OnFailure = "compensate"
    compensate: Compensation | None = None
    confirm: Operation | None = None
    probe: Probe | None = None
    settle: float = MIN_SETTLE
    priority: int | None = None
    fairness_key: str | None = None
    execution: Execution = "remote"
    guarantee: Guarantee = "at-least-once"
    savepoint: Savepoint | None = None
    result_form: str | None = None
    commutative: bool = field(default=False, compare=False, metadata=NOT_PACKED)
    undo_leaves: tuple[str, ...] = field(default=(), compare=False, metadata=NOT_PACKED)

    @property
    def pivot(self) -> bool:
        return self.kind == "pivot"

    @property
    def compensations(self) -> tuple[Operation, ...]:
        """Every action that may undo it: the alternates, then that of a confirmed step."""
        if self.compensate is None:
            return ()
        confirmed = self.compensate.confirmed
        return self.compensate.alternates if confirmed is None else (*self.compensate.alternates, confirmed)

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The forward action, what undoes it, and the confirm; not the probe."""
        return (self.do, *self.compensations, *(() if self.confirm is None else (self.confirm,)))

    @property
    def operations_and_probe(self) -> tuple[Operation, ...]:
        return (*self.operations, *(() if self.probe is None else (self.probe.operation,)))


@dataclass(frozen=True, slots=True)
class BulkTrigger:
    """Events that arrive within ``wait`` seconds share a bulk workflow, at most ``max`` of them."""

    max: int = 500
    wait: float = 0.05


@dataclass(frozen=True, slots=True)
class KafkaTrigger:
    """Starts a saga for each event of a topic; with ``signal`` it signals the waiting saga ``id`` instead.

    ``id``, ``input`` and the condition ``filter`` contain expressions over ``trigger``, the event. ``id`` defaults to
    the definition's own id, and that to the id of the event. ``bulk``: the sagas share workflows. ``redeliver``: after
    how many seconds the event starts a saga that it has started, and that was compensated, again: the first time, the
    second …; empty: never.
    """

    topic: str
    id: str | None = None
    input: Any = "${{ trigger.value }}"
    signal: str | None = None
    filter: str | None = None
    bulk: BulkTrigger | None = None
    redeliver: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ScheduleTrigger:
    """Starts a saga at each time of a cron expression in a time zone.

    ``id`` and ``input`` contain expressions over ``trigger``, which has the time. ``id`` defaults to the definition's
    own id, and that to the name of the saga with the time. ``overlap``: what happens while the saga of an earlier time
    runs. ``catchup_window``: how many seconds late a start may be after Temporal was unavailable; ``jitter``: the most
    seconds by which each is delayed at random.
    """

    cron: str
    timezone: str = "UTC"
    overlap: Overlap = "skip"
    catchup_window: float = 86_400.0
    jitter: float = 0.0
    input: Any = field(default_factory=dict)
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Notification:
    """A best-effort call when the saga reaches one of the milestones ``when``.

    ``intervals`` are the waits in seconds before attempt 2, 3 …; after the last failed attempt it is given up.
    """

    when: tuple[Milestone, ...]
    do: Operation
    intervals: tuple[float, ...] = NOTIFICATION_INTERVALS


@dataclass(frozen=True, slots=True)
class Definition:
    """A whole saga. ``steps`` are in topological order, ties in file order.

    ``digest`` is ``sha256:…`` over the canonical JSON of everything that affects execution; it excludes descriptive
    texts (``description``, step names) and the layout of the file. ``triggers`` and ``schedule`` start runs but are
    not part of one: they neither travel with it nor count in the digest. Nor does ``undo_leaves``, which holds for the
    undo of every step.
    """

    saga: str
    steps: tuple[StepDefinition, ...]
    description: str = ""
    id: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    input: Mapping[str, Any] = field(default_factory=dict)
    output: Any = None
    deadline: float | None = None
    warn_after: float | None = None
    recovery: Literal["backward", "forward"] = "backward"
    language: int = 1
    digest: str = ""
    notify: tuple[Notification, ...] = ()
    locks: Locks | None = None
    triggers: tuple[KafkaTrigger, ...] = field(default=(), compare=False, metadata=NOT_PACKED)
    schedule: ScheduleTrigger | None = field(default=None, compare=False, metadata=NOT_PACKED)
    undo_leaves: tuple[str, ...] = field(default=(), compare=False, metadata=NOT_PACKED)

    def is_started_like(self, other: Definition) -> bool:
        """True if the other one is equal, also in what starts its sagas, which ``==`` and the digest leave out."""
        return self == other and (self.triggers, self.schedule) == (other.triggers, other.schedule)

    def step(self, id: str) -> StepDefinition:
        """The step with this id. Raises KeyError if it does not exist."""
        for step in self.steps:
            if step.id == id:
                return step
        raise KeyError(id)

    @property
    def pivot(self) -> StepDefinition | None:
        """The point of no return, if the saga has one."""
        return next((step for step in self.steps if step.pivot), None)


_LAST_ATTEMPT = 1.0
"""Seconds for an attempt that was due before the policy gave up."""


def backoff(retry: Retry, attempts: int) -> float:
    """Seconds to wait after ``attempts`` attempts, for retries that the state machine schedules itself."""
    if retry.intervals:
        return retry.intervals[min(max(attempts, 1), len(retry.intervals)) - 1]
    # The exponent is limited, so that thousands of attempts do not overflow a float.
    growth = retry.backoff_coefficient ** min(max(attempts - 1, 0), 64)
    return min(retry.initial_interval * growth, max(retry.max_interval, retry.initial_interval))


_SHORTEST_INTERVAL = 0.001
"""Seconds; Temporal takes an interval of zero for its default of a second."""


def exponential(retry: Retry) -> Retry:
    """Return the policy without ``intervals``, as Temporal knows none: the waits grow from the first of them to the
    last one. The failures of this project's workers ask for the exact interval, so these waits follow an attempt that
    had no answer.
    """
    if not retry.intervals:
        return retry
    first, last = (max(retry.intervals[place], _SHORTEST_INTERVAL) for place in (0, -1))
    growth = (last / first) ** (1 / max(len(retry.intervals) - 1, 1))
    return replace(
        retry,
        initial_interval=first,
        backoff_coefficient=max(growth, 1.0),
        max_interval=max(first, last),
        intervals=None,
    )


def remaining_retry(retry: Retry, attempts: int, seconds: float) -> Retry:
    """Return what is left of a policy ``seconds`` after the begin of the first of ``attempts`` attempts; at least one
    more.
    """
    return replace(
        retry,
        max_attempts=max(retry.max_attempts - attempts, 1),
        initial_interval=backoff(replace(retry, intervals=None), attempts + 1),
        give_up_after=None if retry.give_up_after is None else max(retry.give_up_after - seconds, _LAST_ATTEMPT),
        intervals=retry.intervals and (retry.intervals[attempts:] or retry.intervals[-1:]),
    )


ENGINE_ACTIONS = ("saga", "wait", "require", "pass", "finish")
"""The actions that the state machine performs itself."""


def is_read(step: StepDefinition) -> bool:
    """True for a step without an effect: there is nothing to seal, to undo or to probe."""
    return step.kind == "read" or step.do.uses in ("wait", "require", "finish")


def has_effect(step: StepDefinition) -> bool:
    """True for a step whose forward action has an effect; the undo of a `pass` may have one all the same."""
    return not is_read(step) and step.do.uses != "pass"


def guarded_effects(definition: Definition) -> dict[str, list[str]]:
    """The ids of the guarded steps that have an effect, by connection."""
    steps: dict[str, list[str]] = {}
    for step in definition.steps:
        if step.do.connection is not None and has_effect(step):
            steps.setdefault(step.do.connection, []).append(step.id)
    return steps


def is_nested(step: StepDefinition) -> bool:
    return step.do.uses == "saga"


CHECK_SUFFIX = ".check"
"""The suffix of a step's id in the id of its pre-check; no id that an author writes contains it."""


def checked_entry(id: str) -> str | None:
    """The entry id that the pre-check ``id`` belongs to; None if ``id`` is not a pre-check. An item keeps its index."""
    step, mark, item = id.partition(CHECK_SUFFIX)
    return step + item if mark else None
