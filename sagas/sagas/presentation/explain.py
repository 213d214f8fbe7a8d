"""The plan of a saga: the output of `saga explain`, as data and as phrases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sagas.builtins.callbacks import CALLBACK, DEFAULT_CALLBACK_TIMEOUT
from sagas.builtins.http_statuses import written_statuses
from sagas.builtins.messaging import DROP, EMITTERS, RELEASE, REQUEST
from sagas.builtins.spark import SPARK
from sagas.bulk.batchable import why_no_member, why_not_batchable
from sagas.definition.model import (
    Definition,
    Notification,
    Overlap,
    StepDefinition,
    checked_entry,
    is_nested,
    is_read,
)
from sagas.definition.parser.operation_builder import has_reply_probe
from sagas.errors import UsageError
from sagas.protocol.schedule_order import ScheduleTimes
from sagas.simulation import Environment, Script, SimulatedRun, sample_input, simulate
from sagas.simulation.failure_points import INSTANTANEOUS, with_failing_require

KIND_DESCRIPTIONS = {
    "compensatable": "can be undone",
    "pivot": "the point of no return",
    "retriable": "retried until it is done",
    "read": "only reads",
}


def describe_kind(step: StepDefinition) -> str:
    """How a step ends or is undone, as a clause."""
    if step.kind == "retriable" and step.on_failure == "continue":
        return "retried, and left out if it fails"
    return KIND_DESCRIPTIONS[step.kind]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The plan of a definition, and optionally a simulated ``failure`` of ``failed_step``.

    In :meth:`to_json`, ``order`` is topological, and ``undo`` is empty without a failure. ``commit_point`` is the
    pivot's id; without one it is None, and ``commits_at`` says where the commit point is: at the ``end`` of all steps,
    or with ``recovery: forward`` at the ``start``.
    """

    definition: Definition
    failure: SimulatedRun | None = None
    failed_step: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The JSON document of `saga explain`."""
        pivot = self.definition.pivot
        return {
            "order": [step.id for step in self.definition.steps],
            "commit_point": pivot.id if pivot else None,
            "commits_at": "start" if self.definition.recovery == "forward" else "pivot" if pivot else "end",
            "steps": [self._step(step) for step in self.definition.steps],
            "locks": _locks(self.definition),
            "schedule": _schedule(self.definition),
            "redeliver": {
                trigger.topic: list(trigger.redeliver) for trigger in self.definition.triggers if trigger.redeliver
            },
            "undo": self.failure.undone if self.failure else [],
            "state": self.failure.state if self.failure else None,
            "notify": [
                {
                    "when": list(notification.when),
                    "uses": notification.do.uses,
                    "intervals": list(notification.intervals),
                }
                for notification in self.definition.notify
            ],
        }

    def _step(self, step: StepDefinition) -> dict[str, Any]:
        return {
            "id": step.id,
            "kind": step.kind,
            "guarantee": step.guarantee,
            "why": explain_guarantee(step),
            "uses": step.do.uses,
            "needs": list(step.needs),
            "undone_by": [alternate.uses for alternate in step.compensate.alternates] if step.compensate else [],
            "always_undone": step.compensate is not None and step.compensate.always,
            "confirmed_by": step.confirm.uses if step.confirm else None,
            "rejection": describe_rejection(step),
            "batchable": (why_not := self.why_not_batchable(step)) is None,
            "why_not_batchable": why_not,
        }

    def why_not_batchable(self, step: StepDefinition) -> str | None:
        """Why a saga leaves its bulk workflow at this step at the latest, as a clause; None if it does not."""
        return why_not_batchable(step) or why_no_member(self.definition)


def explain(
    definition: Definition,
    fail: str | None = None,
    input: Any = None,
    script: Script | None = None,
    environment: Environment | None = None,
) -> Explanation:
    """The plan; with ``fail`` also what follows if this step or entry id is rejected, found by a simulated run.

    Without ``input`` a sample input is generated. Raises UsageError if the step does not exist, or is not reached with
    this input.
    """
    if fail is None:
        return Explanation(definition)
    plain = script or Script(input_is_sample=input is None)
    given = sample_input(definition, environment) if input is None else input
    step = next((step for step in definition.steps if step.id == fail.partition("#")[0]), None)
    outcomes: dict[str, Any] = {fail: "rejected"}
    broken = definition
    if step is not None and step.do.uses == "require":
        broken, outcomes = with_failing_require(definition, step), {}
    elif step is not None and step.do.uses in INSTANTANEOUS:
        raise UsageError(f"{fail} cannot fail: `{step.do.uses}` calls nothing", help="name another step")
    run = simulate(broken, given, plain.with_outcomes(outcomes), environment)
    rejected = [row for row in run.steps if fail in (row["id"], row["step"]) and row["outcome"] is not None]
    if not rejected:
        raise UsageError(
            f"{fail} is not reached {plain.with_input}, so it cannot fail",
            help="give another input with --input '{…}'",
        )
    return Explanation(definition, run, fail)


def describe_commit_point(definition: Definition) -> str:
    """A sentence that locates the commit point."""
    if definition.recovery == "forward":
        return "The commit point is the start: nothing is ever undone, every step is retried until it is done."
    pivot = definition.pivot
    early = [step.id for step in definition.steps if step.do.uses == "finish"]
    earlier = f" If the condition of {' or '.join(early)} is true, it is reached there." if early else ""
    if pivot is not None:
        return (
            f"The commit point is {pivot.id}: before it a failure undoes everything, after it the saga only "
            f"goes forward.{earlier}"
        )
    return f"There is no pivot: the commit point is the success of the last step.{earlier}"


def _locks(definition: Definition) -> dict[str, Any] | None:
    locks = definition.locks
    if locks is None:
        return None
    return {"keys": locks.keys, "wait": locks.wait, "from": locks.from_, "until": locks.until}


def _schedule(definition: Definition) -> dict[str, Any] | None:
    return None if definition.schedule is None else ScheduleTimes.of(definition.schedule).to_json()


def describe_schedule(definition: Definition) -> str | None:
    """A sentence about the times at which sagas start; None without a schedule."""
    schedule = definition.schedule
    if schedule is None:
        return None
    jitter = f", up to {describe_duration(schedule.jitter)} later" if schedule.jitter else ""
    return (
        f"A schedule starts it at `{schedule.cron}` in {schedule.timezone}{jitter}, once for each time; "
        f"{_OVERLAPS[schedule.overlap]} ({schedule.overlap})."
    )


def describe_redelivery(definition: Definition) -> str | None:
    """A sentence about the events that start a compensated saga again; None without any."""
    offered = [
        f"an event of {trigger.topic} starts it again after {' and '.join(map(describe_duration, trigger.redeliver))}"
        for trigger in definition.triggers
        if trigger.redeliver
    ]
    if not offered:
        return None
    return f"After a compensation {'; '.join(offered)}, unless a person has decided it; after that nothing does."


_OVERLAPS: Mapping[Overlap, str] = {
    "skip": "while the saga of an earlier time runs, a time is skipped",
    "buffer_one": "while the saga of an earlier time runs, the first of the further times waits",
    "buffer_all": "while the saga of an earlier time runs, all further times wait, in their order",
    "allow_all": "the sagas of several times may run at once",
    "cancel_other": "the saga of an earlier time that still runs is cancelled and undone first",
}


def describe_locks(definition: Definition) -> str | None:
    """A sentence about the locks; None without them."""
    locks = definition.locks
    if locks is None:
        return None
    keys = ", ".join(map(str, locks.keys)) if isinstance(locks.keys, list) else locks.keys
    start = "the first step" if locks.from_ is None else locks.from_
    end = "the commit point" if locks.until == "commit" else "the saga is final"
    otherwise = "at once" if not locks.wait else f"within {describe_duration(locks.wait)}"
    return (
        f"Before {start} it locks {keys} until {end}; if they are not free {otherwise}, it goes back with the reason "
        "locked."
    )


def describe_notification(notification: Notification) -> str:
    """The sentence that says when a notification is sent, by which action, and how often it is attempted."""
    with_ = notification.do.with_ or {}
    to = with_.get("connection") or with_.get("topic")
    attempts, last = len(notification.intervals) + 1, describe_duration(sum(notification.intervals))
    return (
        f"{', '.join(notification.when)}: {notification.do.uses}{f' ({to})' if to else ''}, "
        f"at most {attempts} attempts within {last}, then given up; the saga does not depend on it"
    )


def describe_duration(seconds: float) -> str:
    """A duration for display: `36 s`, `2.6 h`."""
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:g} s"


def describe_compensation(step: StepDefinition) -> str | None:
    """The undo of the step, as a phrase; None if it is not. Spark jobs are undone by the engine's own operations."""
    if step.compensate is None:
        return None
    if step.do.uses == SPARK:
        return "discarded before publication, reverted after it"
    if step.do.two_phase:
        return "its prepared transaction is rolled back; once committed it stays"
    if _drops_only(step):
        return "its held events are dropped; once published they stay"
    if step.do.images:
        return "undone automatically: its rows are restored from images, or it parks if they have changed"
    always = ", also after a rejection or a failure" if step.compensate.always else ""
    return f"undone by {', else '.join(alternate.uses for alternate in step.compensate.alternates)}{always}"


def describe_savepoint(step: StepDefinition) -> str | None:
    """Return what a failure after this step leads to, as a phrase; None without a savepoint."""
    if step.savepoint is None:
        return None
    wait = f" after {describe_duration(step.savepoint.wait)}" if step.savepoint.wait else ""
    return (
        f"savepoint: a failure after it is undone up to here and repeated{wait}, {step.savepoint.attempts} runs in all"
    )


def describe_confirm(step: StepDefinition) -> str | None:
    """Return what happens to the step at the commit point, as a phrase; None if nothing does."""
    if step.confirm is None:
        return None
    if step.do.uses == SPARK:
        return "published at the commit point" if step.compensate else "published as soon as it is done"
    if step.do.two_phase:
        return "its prepared transaction is committed at the commit point"
    if step.confirm.uses == RELEASE:
        return "its held events are released at the commit point"
    released = ", its held events are released with it" if step.do.holds else ""
    return f"made final by {step.confirm.uses}{released}"


def _rejection_sentence(step: StepDefinition) -> str:
    if not step.do.rejects:
        return ""
    if step.do.remembers_rejections:
        return " A rejection is final, also after an attempt without an answer."
    return " A rejection after an attempt without an answer is retried, because that attempt may be in progress."


def _probe_sentence(step: StepDefinition) -> str:
    if step.probe is None:
        return ""
    uses = step.probe.operation.uses
    if step.probe.operation.seals:
        return f" If {uses} finds no effect, it has sealed the key, so there will be none."
    return (
        f" If {uses} finds no effect, it is believed when no attempt has ended for {describe_duration(step.settle)} "
        "(settle)."
    )


def describe_rejection(step: StepDefinition) -> str | None:
    """Return what the answer of an HTTP service has to be for a rejection, as a phrase; None for another action."""
    if step.do.uses != "http":
        return None
    given = step.do.with_ or {}
    statuses = [str(status) for status in written_statuses(given, "rejected")]
    reasons = [f"the status {' or '.join(statuses)}"] if statuses else []
    if isinstance(callback := given.get(CALLBACK), Mapping) and "rejected" in callback:
        reasons.append(f"a callback with {callback['rejected']}")
    if "rejected_when" in given:
        reasons.append(f"{given['rejected_when']} of a status {' or '.join(map(str, written_statuses(given, 'done')))}")
    return f"rejected by {', or by '.join(reasons)}" if reasons else "never rejected"


def describe_undo_after_failure(step: StepDefinition) -> str:
    """Return what undoes the step after another one has failed, which is always before the commit point."""
    if step.compensate is None:
        return "the nested saga's own undo"
    if _drops_only(step):
        return "its held events are dropped"
    if step.do.images:
        return "automatic: its rows are restored from images"
    if step.do.two_phase:
        return "its prepared transaction is rolled back"
    return "its staged output is discarded" if step.do.uses == SPARK else step.compensate.alternates[0].uses


def _drops_only(step: StepDefinition) -> bool:
    return step.compensate is not None and step.compensate.alternates[0].uses == DROP


def explain_guarantee(step: StepDefinition) -> str:
    """A sentence that explains why the step has its guarantee, and how it is answered."""
    callback = (step.do.with_ or {}).get(CALLBACK) if step.do.uses == "http" else None
    if callback is None:
        return _explain_guarantee(step)
    limit = callback.get("timeout", DEFAULT_CALLBACK_TIMEOUT)
    return f"{_explain_guarantee(step)} Its outcome is a callback; without one within {limit} it is unknown."


def _explain_guarantee(step: StepDefinition) -> str:
    if step.do.uses == "wait":
        return "Waiting has no effect."
    if step.do.uses == "require":
        return "A condition is only evaluated."
    if step.do.uses == "finish":
        return "A condition is only evaluated; if it is true, the saga completes without the steps below."
    if step.do.uses == "pass":
        return "It does nothing." if is_read(step) else "It does nothing; only its undo has an effect."
    if is_read(step):
        if checked_entry(step.id):
            return "It runs before the first effect. Its answer is not a promise: the step may still be rejected."
        return "It only reads, so a retry has no effect."
    if is_nested(step):
        return "Each step of the nested saga has its own guarantee; it runs once under the id of this step."
    if step.do.uses == SPARK:
        when = "after the commit point" if step.compensate else "right after that"
        return f"Staged unread, audited, and published in one atomic commit {when}: once, or never."
    if step.do.uses == REQUEST:
        command = (
            "The command is written once; its effect happens exactly once if the participant honours the key in it."
        )
        return command if has_reply_probe(step) else f"{command}{_probe_sentence(step)}"
    if step.do.uses in EMITTERS:
        when = "at the commit point" if step.do.holds else "soon after"
        return f"The events are rows of one transaction on {step.do.connection}, published {when}: each once, or none."
    if step.do.two_phase:
        return (
            f"Prepared on {step.do.connection}, invisible and with its locks held until the commit point; then "
            "committed once, or never."
        )
    if step.do.guarded:
        return f"The effect and the guard's row are one transaction on {step.do.connection}: it happens exactly once."
    if step.do.idempotent:
        key = "Exactly once only if the participant honours the idempotency key it is sent with every attempt."
        return f"{key}{_rejection_sentence(step)}{_probe_sentence(step)}"
    if step.probe is not None:
        uses = step.probe.operation.uses
        return f"The participant does not honour the key; {uses} is called before any retry.{_probe_sentence(step)}"
    return "The participant does not honour the key: after a lost response it is unknown whether it took effect."
