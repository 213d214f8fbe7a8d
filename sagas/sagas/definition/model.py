"""A saga definition after parsing: normalised, checked, immutable.

Everything a run needs is in here: durations are seconds, short forms are expanded, defaults are applied,
``needs`` is explicit, and the facts about actions that decide what the engine may do (where the guard row
lives, whether the participant honours the key) are copied in. The definition travels with the run, so a
later change of a file or of an action's decorator never changes a saga that has started.

Values that may hold ``${{ … }}`` expressions (``with_``, ``output``, ``labels`` …) are kept as plain JSON with the
expressions in their source form; sagas/expressions compiles and evaluates them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

StepKind = Literal["compensatable", "pivot", "retriable", "read"]
OnFailure = Literal["compensate", "park", "continue"]
Execution = Literal["remote", "local"]
Guarantee = Literal["guarded", "participant-keyed", "at-least-once"]
Milestone = Literal["completed", "compensated", "parked", "residue", "overdue"]
"""What a saga can notify somebody of."""

NOTIFICATION_INTERVALS = (1.0, 5.0, 30.0, 300.0, 1800.0, 7200.0)
"""Seconds between the attempts of a notification where the author says nothing."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how patiently an operation is tried. Times in seconds.

    ``intervals`` replaces the exponential back-off: the wait before attempt 2, 3 …; the last one repeats.
    ``give_up_after`` bounds the total time over all attempts.
    """

    max_attempts: int = 12
    initial_interval: float = 1.0
    backoff_coefficient: float = 2.0
    max_interval: float = 60.0
    give_up_after: float | None = None
    intervals: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that can be asked of a participant: a forward action, a compensation, a confirm, a probe.

    ``with_`` None means: the argument values of the forward call, frozen when it was made (the short form).
    ``connection`` is the SQL connection whose database holds the guard row, None for an unguarded action.
    ``local`` is True where the action is registered in this project (a Python action, ``sql``, ``http``, …); False
    means foreign: some worker, perhaps in another language, serves it on ``task_queue``.
    ``idempotent`` says that the participant honours the key; ``seals`` that a probe seals it while answering.
    ``holds`` (of forward actions): True: its events with `hold` wait for the commit point; False: they are published at
    once, because there is nothing to wait for; None: it has none.
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
    rejects: bool = True
    seals: bool = False
    holds: bool | None = None

    @property
    def guarded(self) -> bool:
        """True when the effect and a guard row are written in one local transaction."""
        return self.connection is not None


@dataclass(frozen=True, slots=True)
class Compensation:
    """What undoes a step: alternates in the order in which they are tried.

    ``confirmed`` undoes the step after its confirm; without it a confirmed step cannot be undone.
    """

    alternates: tuple[Operation, ...]
    confirmed: Operation | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """How to find out whether an unknown attempt took effect.

    Without expressions the action itself returns Done(result), Absent or Unknown. With them ``done`` and ``absent``
    are CEL over ``response`` (the action's result), ``result`` gives the step's result when done.
    """

    operation: Operation
    done: str | None = None
    absent: str | None = None
    result: str | None = None


@dataclass(frozen=True, slots=True)
class StepDefinition:
    """One step of the graph. ``needs`` is always explicit here, whatever the author left out."""

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
    settle: float = 30.0
    priority: int | None = None
    fairness_key: str | None = None
    execution: Execution = "remote"
    guarantee: Guarantee = "at-least-once"

    @property
    def pivot(self) -> bool:
        return self.kind == "pivot"


@dataclass(frozen=True, slots=True)
class KafkaTrigger:
    """Starts a saga for each event of a topic; with ``signal`` it wakes the waiting saga ``id`` instead.

    ``id``, ``input`` and ``filter`` (``${{ }}``, true or false) are expressions over ``trigger``, the event. Without
    ``id`` the definition's own id holds, and without that one the id of the event.
    """

    topic: str
    id: str | None = None
    input: Any = "${{ trigger.value }}"
    signal: str | None = None
    filter: str | None = None


@dataclass(frozen=True, slots=True)
class Notification:
    """Tells somebody, best effort, when the saga comes to one of the moments ``when``.

    ``intervals`` are the waits (seconds) before attempt 2, 3 …; when the last attempt has failed it is given up.
    """

    when: tuple[Milestone, ...]
    do: Operation
    intervals: tuple[float, ...] = NOTIFICATION_INTERVALS


@dataclass(frozen=True, slots=True)
class Definition:
    """A whole saga. ``steps`` are in topological order, ties in the order of the file.

    ``digest`` is ``sha256:…`` over the canonical JSON of everything that decides what happens; texts for people
    (``description``, step names) and the layout of the file are left out of it. ``triggers`` start runs and are no
    part of one: they neither travel with it nor count in the digest.
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
    triggers: tuple[KafkaTrigger, ...] = field(default=(), compare=False, metadata={"travels": False})

    def step(self, id: str) -> StepDefinition:
        """The step with this id. Raises KeyError when there is none."""
        for step in self.steps:
            if step.id == id:
                return step
        raise KeyError(id)

    @property
    def pivot(self) -> StepDefinition | None:
        """The point of no return, if the saga has one."""
        return next((step for step in self.steps if step.pivot), None)


# How long to wait before an attempt that the machine schedules itself.


def backoff(retry: Retry, attempts: int) -> float:
    """Seconds between attempt ``made`` and the next one."""
    if retry.intervals:
        return retry.intervals[min(max(attempts, 1), len(retry.intervals)) - 1]
    # The exponent is bounded, so that thousands of attempts do not overflow a float.
    growth = retry.backoff_coefficient ** min(max(attempts - 1, 0), 64)
    return min(retry.initial_interval * growth, max(retry.max_interval, retry.initial_interval))


def is_read(step: StepDefinition) -> bool:
    """A read has no effect, so there is nothing to seal, to undo or to ask about."""
    return step.kind == "read" or step.do.uses in ("wait", "require")


def is_nested(step: StepDefinition) -> bool:
    return step.do.uses == "saga"
