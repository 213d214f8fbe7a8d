"""The view of a saga: the document of `saga show`, as frozen values with a JSON form.

The machine builds it (:mod:`sagas.machine.view`), and it travels as JSON: in the response of the query ``saga``, in the
memo of a closed run, in the details of its failure. The reader may be older or newer than the worker that wrote it, so
`from_json` ignores fields that it does not know, and a field that is missing or null has its default. A client that may
start workflows can write such a document: :mod:`sagas.protocol.foreign_view` reads one from outside.

The sentence of each field is its description in the published JSON Schema (docs/reference/saga-show.md).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

from sagas.definition.model import Guarantee, Milestone, StepState
from sagas.protocol.access_view import AccessView, Timestamp
from sagas.protocol.doubtful_outcomes import IN_LEDGER, is_doubt
from sagas.protocol.json_view import OMITTED, JsonView
from sagas.protocol.outcomes import PAUSED, OutcomeKind
from sagas.protocol.parked_rows_view import ParkedOutputView, ParkedRowView
from sagas.protocol.redelivery_view import RedeliveryView
from sagas.protocol.standing_pause import ANSWERED, HoldKind, pause_order, resume_command
from sagas.protocol.waits import parked_hint
from sagas.text.shell import saga_command
from sagas.text.shortening import and_more

SagaState = Literal["RUNNING", "COMMITTED", "COMPENSATING", "PARKED", "COMPLETED", "COMPENSATED", "RESIDUE"]

STARTED_AGAIN: tuple[SagaState, ...] = ("COMPENSATED", "RESIDUE")
"""Ends after which `--again` starts the same id once more."""
ViewState = SagaState | Literal["TERMINATED", "FAILED"]
"""TERMINATED: closed by Temporal. FAILED: refused at the start."""

IMAGES_MISSING = "the images of the changed rows are missing, so the step cannot be undone automatically"
"""Why an automatic undo is parked for which no image is stored."""

STATES: tuple[ViewState, ...] = (*get_args(SagaState), "TERMINATED", "FAILED")

FINAL_STATES: tuple[ViewState, ...] = ("COMPLETED", "COMPENSATED", "RESIDUE", "TERMINATED", "FAILED")

OVER: tuple[ViewState, ...] = tuple(state for state in FINAL_STATES if state != "TERMINATED")
"""The states of a saga that has ended by itself."""

Phase = Literal["forward", "committed", "backward"]
OperationStatus = Literal[
    "PENDING", "RUNNING", "DONE", "NOTHING_TO_UNDO", "REJECTED", "FAILED", "UNKNOWN", "PARKED", "SKIPPED"
]
EntryOperation = Literal["do", "undo", "confirm"]
Decision = Literal["retry", "done", "skip", "compensate"]
Intervention = Literal["retry", "done", "skip", "compensate", "pause", "resume", "cancel", "undo"]
LockRequestState = Literal["WAITING", "HELD", "RELEASED"]
DeliveryState = Literal["PENDING", "DELIVERED", "EXHAUSTED", "STOPPED", "SKIPPED"]
ReasonKind = Literal[
    "rejected",
    "failed",
    "unknown",
    "cancelled",
    "deadline",
    "late",
    "undone",
    "parent",
    "operator",
    "definition",
    "locked",
    "terminated",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonView(JsonView):
    """Why a saga goes or went backward, or was refused."""

    kind: Annotated[ReasonKind, "what happened"]
    step: Annotated[str | None, "the entry id of the step with which it began"] = None
    type: Annotated[str | None, "the failure type"] = None
    message: Annotated[str | None, "one sentence"] = None
    details: Annotated[
        Mapping[str, Any],
        "the details of the failure; `before` is the reason of a rollback that was under way at a terminate",
    ] = field(default_factory=dict)
    quotes: Annotated[
        bool | None,
        "true: message and details have words of a participant, an expression or a database; `saga serve` omits them",
        OMITTED,
    ] = None

    @property
    def title(self) -> str:
        """The kind for people, to whom an expression may fail because of the definition or of the input."""
        return "definition or input" if self.kind == "definition" else self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorView(JsonView):
    """The failure of an attempt."""

    type: Annotated[str, "the failure type"]
    message: Annotated[str, "one sentence"]
    details: Annotated[Mapping[str, Any] | None, "further data; notifications have none", OMITTED] = None


_Arguments = Annotated[
    Mapping[str, Any] | None,
    "with what it was called, unless it has succeeded; `x-sensitive` values of the input are `•••`; "
    "a placeholder with `omitted` above 4 KiB, and in a view that would be too large",
    OMITTED,
]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationView(JsonView):
    """The undo or the confirm of a step."""

    uses: Annotated[str, "the action"]
    state: Annotated[OperationStatus, "what became of it"]
    attempts: Annotated[int | None, "attempts so far; null if unknown"] = None
    alternate: Annotated[int, "which of the alternates of `compensate` it is, from 0"] = 0
    error: Annotated[ErrorView | None, "the failure of the last attempt"] = None
    arguments: _Arguments = None
    next_attempt_at: Annotated[str | None, "when the next attempt is made (RFC 3339 in UTC)", OMITTED] = None
    ended_at: Timestamp | None = None
    left_to: Annotated[
        tuple[str, ...] | None, "the steps whose automatic undos restore rows of this one, which is DONE", OMITTED
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView(JsonView):
    """A row of the ledger: a step, or one item of a `for_each`."""

    id: Annotated[str, "the entry id: the step, for an item with its index, as in `reserve#3`"]
    step: Annotated[str, "the step of the definition"]
    name: Annotated[str, "its name for people"] = ""
    uses: Annotated[str, "the action"]
    state: Annotated[StepState, "what became of it, forward and backward"]
    outcome: Annotated[OutcomeKind | None, "how the forward action ended"] = None
    generation: Annotated[int | None, "the generation in which it ran"] = None
    attempts: Annotated[int | None, "forward attempts so far; null if unknown"] = None
    guarantee: Annotated[Guarantee, "what makes its effect happen once"] = "at-least-once"
    effect: Annotated[Literal["none"] | None, "`none` for a read, which has nothing to undo", OMITTED] = None
    result: Annotated[
        Any,
        "its result; `x-sensitive` values of the input are `•••`; "
        "a placeholder with `omitted` if it was not kept, and in a view that would be too large",
    ] = None
    result_kept: Annotated[
        Literal[False] | None, "`false` if its result could not be kept: an expression that reads it fails", OMITTED
    ] = None
    error: Annotated[ErrorView | None, "the failure of the last attempt"] = None
    arguments: _Arguments = None
    next_attempt_at: Annotated[str | None, "when the next attempt is made (RFC 3339 in UTC)", OMITTED] = None
    started_at: Timestamp | None = None
    ended_at: Timestamp | None = None
    compensation: Annotated[OperationView | None, "null before the step has begun, and without a `compensate`"] = None
    confirmation: Annotated[OperationView | None, "null before the step has begun, and without a `confirm`"] = None
    progress: Annotated[
        Mapping[str, Any] | None, "the last heartbeat of the attempt in flight, or the callback that it awaits", OMITTED
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedView(JsonView):
    """An operation that waits for an operator's decision, here or in a nested saga."""

    step: Annotated[str, "the entry id of the step"]
    op: Annotated[EntryOperation, "the step itself, its undo, or its confirm"]
    since: Annotated[Timestamp, "when it was parked"]
    why: Annotated[str, "one sentence"]
    decisions: Annotated[tuple[Decision, ...], "the decisions that are possible"] = ()
    commands: Annotated[
        tuple[str, ...],
        "the command for each of them; first, after a mistake in the definition, that which corrects it",
    ] = ()
    next_probe_at: Annotated[
        Timestamp | None, "when its probe is asked again, whose answer can end the wait as well", OMITTED
    ] = None
    system: Annotated[str | None, "the SQL connection of the rows", OMITTED] = None
    rows: Annotated[tuple[ParkedRowView, ...] | None, "the first rows that keep an automatic undo parked", OMITTED] = (
        None
    )
    rows_omitted: Annotated[int | None, "how many more such rows there are", OMITTED] = None
    sql: Annotated[
        tuple[str, ...] | None,
        "restores rows of the step as they were before it, when it is run in the database of `system`",
        OMITTED,
    ] = None
    sql_note: Annotated[str | None, "what `sql` does not restore, or why the database refuses it now", OMITTED] = None
    outputs: Annotated[
        tuple[ParkedOutputView, ...] | None, "the outputs of a Spark step that its undo could not revert", OMITTED
    ] = None
    reverted: Annotated[tuple[str, ...] | None, "its outputs that are already reverted", OMITTED] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildParkedView(JsonView):
    """An operation parked in a nested saga, as that saga has reported it."""

    id: Annotated[str, "the saga in which it is parked"]
    saga: Annotated[str, "the name of its definition"]
    step: Annotated[str, "the entry id of the step in that saga"]
    op: Annotated[EntryOperation, "the step itself, its undo, or its confirm"]
    since: Annotated[Timestamp, "when it was parked"]
    why: Annotated[str, "one sentence, shortened"]
    decisions: Annotated[tuple[Decision, ...], "the decisions that are possible"] = ()
    commands: Annotated[tuple[str, ...], "the command for each of them"] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildView(JsonView):
    """A nested saga."""

    id: str
    step: Annotated[str, "the entry id of the step that started it"]
    saga: Annotated[str, "the name of its definition"]
    state: Annotated[str, "its last known state"]
    waits: Annotated[tuple[ChildParkedView, ...] | None, "what is parked in it or below it", OMITTED] = None
    blocks: Annotated[Literal["saga", "step"] | None, "what waits for it: the whole saga, or the step", OMITTED] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidueView(JsonView):
    """An effect that contradicts the end of the saga."""

    step: Annotated[str, "the entry id of the step"]
    saga: Annotated[str | None, "the nested saga that has the step", OMITTED] = None
    kind: Annotated[
        Literal["effect_stays", "effect_missing", "effect_unclear"],
        "what is wrong with the effect; `effect_unclear`: it is missing, or there in part or as a whole, which nobody "
        "knows, because an attempt has ended without an answer or has changed a catalog table by table",
    ]
    system: Annotated[
        str | None, "the connection, task queue or action with the effect, such as the connection of an `http` step"
    ] = None
    key: Annotated[str | None, "the row of an automatic undo, else the idempotency key of the effect"] = None
    command: Annotated[str | None, "what an operator has to carry out: the action with its arguments, or SQL"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointView(JsonView):
    """A savepoint, and how often what follows it has run."""

    step: Annotated[str, "the step with the `savepoint`"]
    runs: Annotated[int, "the runs of what follows it, the current one included"]
    attempts: Annotated[int, "how many runs it allows"]
    undoing: Annotated[
        tuple[str, ...] | None,
        "while a rollback stops at it: the steps that are undone and then run again",
        OMITTED,
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LockBlockerView(JsonView):
    """A key that another saga holds, or waits for before this one."""

    key: str
    owner: Annotated[str, "the id of that saga, or of its root saga"]
    since: Annotated[Timestamp, "since when it holds the key or waits for it"]
    parked: Annotated[bool | None, "true if it was parked when this saga last asked for its locks", OMITTED] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocksView(JsonView):
    """The semantic locks of a saga."""

    state: Annotated[LockRequestState, "RELEASED: also if they were never obtained"]
    keys: Annotated[tuple[str, ...], "sorted"] = ()
    since: Annotated[Timestamp | None, "when they were obtained; while it waits, when they were requested"] = None
    waits_for: Annotated[tuple[LockBlockerView, ...], "who kept it waiting when it last asked"] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionView(JsonView):
    """A decision of an operator."""

    at: Timestamp
    who: Annotated[str, "who decided; `(unverified)` behind the name: no signature proves it"]
    step: Annotated[str, "the entry id of the step; empty: the decision is about the whole saga"]
    decision: Intervention
    reason: str
    evidence: Annotated[str | None, "what proves a decision that the engine cannot check"] = None
    arguments: Annotated[Mapping[str, Any] | None, "the new arguments of a retry", OMITTED] = None
    definition: Annotated[str | None, "the digest of the corrected definition that a retry brought", OMITTED] = None
    closed: Annotated[
        tuple[str, ...] | None,
        "the outputs of a Spark step that it closes, as reverted by hand",
        OMITTED,
    ] = None
    error: Annotated[str | None, "why the operation was parked about which it decides", OMITTED] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseView(JsonView):
    """A pause by an operator, or by a circuit breaker."""

    at: Timestamp
    who: Annotated[
        str, "who paused the saga, or `the circuit breaker`; `(unverified)` behind the name: no signature proves it"
    ]
    reason: Annotated[str | None, "why"] = None
    held: Annotated[tuple[str, ...], "the entry ids of the steps of which a call is held back"] = ()
    kind: Annotated[
        HoldKind | None,
        "not this saga is paused, but all sagas of its name, or a connection that it needs; `circuit_breaker`: that of "
        "such a connection is open",
        OMITTED,
    ] = None
    name: Annotated[str | None, "the name of the sagas, or of the connection", OMITTED] = None

    @property
    def order(self) -> str:
        """The value of the search attribute SagaPaused of the sagas that wait for its end."""
        return pause_order(self.kind, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationView(JsonView):
    """A notification that was sent. Only the run that delivers it knows its state."""

    id: str
    event: Annotated[str, "the event id, the same in every attempt"]
    when: Annotated[Milestone, "the milestone that caused it"]
    uses: Annotated[str, "the action that delivers it"]
    at: Timestamp
    run: Annotated[str, "the workflow id of the run that delivers it"]
    state: Annotated[DeliveryState | None, "null if that run is not known"] = None
    attempts: int | None = None
    error: Annotated[ErrorView | None, "the failure of the last attempt"] = None
    next_attempt_at: Timestamp | None = None
    ended_at: Timestamp | None = None
    closed: Annotated[str | None, "who has closed it undelivered, unverified, and why", OMITTED] = None

    @property
    def can_be_sent(self) -> bool:
        """False if its arguments could not be computed, so that it would fail the same way."""
        return self.error is None or self.error.type != "definition" or bool(self.attempts)

    def commands(self, saga_id: str) -> tuple[str, ...]:
        """The commands for a notification that was not delivered and is not attempted any more."""
        if self.state not in ("EXHAUSTED", "STOPPED"):
            return ()
        again = (saga_command("notify", saga_id, self.id, again=True),) if self.can_be_sent else ()
        return (*again, saga_command("resolve", saga_id, self.id, "skip", reason="…"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SagaView(JsonView):
    """The state of one saga."""

    id: Annotated[str, "the id of the saga, and of its workflow"]
    saga: Annotated[str, "the name of the definition"]
    digest: Annotated[str | None, "the digest of the definition"] = None
    generation: Annotated[int | None, "counts the starts under this id, from 1"] = None
    state: Annotated[ViewState, "TERMINATED: closed in Temporal; FAILED: refused at the start"]
    phase: Annotated[Phase | None, "`committed` from the commit point on"] = None
    reason: Annotated[ReasonView | None, "why it goes or went backward, or was refused"] = None
    input: Annotated[Any, "a placeholder with `omitted` in a view that would be too large"] = None
    output: Annotated[
        Any,
        "`x-sensitive` values of the input are `•••`; a placeholder with `omitted` if it alone is too large for a view",
    ] = None
    labels: Annotated[Mapping[str, str], "the values of `labels`"] = field(default_factory=dict)
    started_at: Annotated[Timestamp | None, "when the first run of the saga started"] = None
    committed_at: Annotated[Timestamp | None, "when the commit point was reached"] = None
    ended_at: Annotated[Timestamp | None, "null while it can go on"] = None
    deadline_at: Annotated[Timestamp | None, "when its `deadline` passes"] = None
    can_undo: Annotated[bool, "whether `saga undo` is possible"] = False
    undo_refusal: Annotated[str | None, "why a COMPLETED saga cannot be undone"] = None
    undo_until: Annotated[Timestamp | None, "always null in this version"] = None
    cancel_requested: Annotated[bool, "whether a cancel was accepted, or is recorded in Temporal"] = False
    overdue: Annotated[bool, "whether it runs longer than its `warn_after`"] = False
    steps_omitted: Annotated[
        Mapping[str, int] | None,
        "the number of rows left out of a view that would be too large, by step and state, as in `reserve DONE`",
    ] = None
    parent: Annotated[str | None, "the id of the parent saga"] = None
    children: Annotated[tuple[ChildView, ...], "the nested sagas it has started"] = ()
    web_ui: Annotated[str | None, "the page of the run in the Temporal Web UI"] = None
    steps: Annotated[tuple[StepView, ...], "the ledger: a row for each step and each item of a `for_each`"] = ()
    parked: Annotated[tuple[ParkedView, ...], "what waits for a decision of an operator"] = ()
    not_done: Annotated[tuple[str, ...], "entry ids of steps whose failure was passed over"] = ()
    residue: Annotated[tuple[ResidueView, ...], "effects that stay or are missing, contrary to the end"] = ()
    operator: Annotated[tuple[DecisionView, ...], "the decisions of operators, in order"] = ()
    notifications: Annotated[tuple[NotificationView, ...], "the notifications that were sent"] = ()
    redelivery: Annotated[RedeliveryView | None, "the next start of a compensated saga for its event", OMITTED] = None
    savepoints: Annotated[tuple[SavepointView, ...] | None, "the savepoints of the definition", OMITTED] = None
    locks: Annotated[LocksView | None, "its semantic locks, once it has requested them", OMITTED] = None
    row_locks: Annotated[
        tuple[str, ...] | None,
        "the SQL connections on which `compensate: auto` has locked rows until it is final",
        OMITTED,
    ] = None
    paused: Annotated[PauseView | None, "nothing begins until an operator resumes it", OMITTED] = None
    accesses: Annotated[
        tuple[AccessView, ...] | None,
        "who has seen its `x-sensitive` values by `--reveal`, or had them forgotten, and who has started it over HTTP "
        "or operated it there; only `saga show` has it, from the ledger",
        OMITTED,
    ] = None
    incomplete: Annotated[str | None, "why the view is not complete, such as that no worker answers", OMITTED] = None
    verified: Annotated[bool | None, "false: no key of the project is here to verify the end", OMITTED] = None
    bulk_workflow: Annotated[str | None, "the id of the bulk workflow that runs the saga", OMITTED] = None
    stuck: Annotated[tuple[str, ...] | None, "why the saga will not finish by itself", OMITTED] = None
    needs_resume: Annotated[bool | None, "its effects are of a run that `saga resume` continues", OMITTED] = None
    continue_command: Annotated[
        str | None, "that command, if it needs options: FILE stands for what the databases have not kept", OMITTED
    ] = None
    source: Annotated[
        Literal["ledger"] | None,
        "where the view was read if Temporal has no run of the saga: it was deleted, or was that of a bulk workflow",
        OMITTED,
    ] = None

    @property
    def is_unverified(self) -> bool:
        """True if anybody may have closed or answered for the run, and the ledger does not know better."""
        return self.is_of_unsigned_run and not (self.incomplete or "").endswith(IN_LEDGER)

    @property
    def is_of_unsigned_run(self) -> bool:
        """True if no key that is here has signed what the run says; the view may be that of the ledger."""
        return is_doubt(self.incomplete or "")

    @property
    def repeated_from(self) -> SavepointView | None:
        """The savepoint at which the rollback under way stops; None if there is no such rollback."""
        return next((savepoint for savepoint in self.savepoints or () if savepoint.undoing is not None), None)

    @property
    def ran_until(self) -> str | None:
        """When the saga ended. A completed one may be undone much later: then when it was past its commit point."""
        was_undone = self.phase == "backward" and self.committed_at is not None and self.ended_at is not None
        return self.committed_at if was_undone else self.ended_at

    @property
    def can_be_cancelled(self) -> bool:
        """True before the commit point, also while a rollback stops at a savepoint."""
        before_rollback = self.phase == "forward" or self.repeated_from is not None
        return before_rollback and self.ended_at is None and not self.cancel_requested

    @property
    def blocked_steps(self) -> frozenset[str]:
        """The entry ids of the steps that wait for a nested saga with parked operations."""
        return frozenset(child.step for child in self.children if child.waits)

    @property
    def lock_wait(self) -> str | None:
        """The lock for which it waits and who holds it, as a clause; None if it waits for none."""
        locks = self.locks
        if locks is None or locks.state != "WAITING":
            return None
        if not locks.waits_for:
            return f"waits for {', '.join(locks.keys[:3])}{' …' if len(locks.keys) > 3 else ''}"
        first, others = locks.waits_for[0], and_more(len(locks.waits_for) - 1)
        hint = f"; {parked_hint(first.owner)}" if first.parked else ""
        return f"waits for {first.key}, held by {first.owner} since {first.since}{others}{hint}"

    @property
    def pause_text(self) -> str | None:
        """A clause that says who has paused the saga, since when and why; None if it is not paused."""
        pause = self.paused
        if pause is None:
            return None
        if pause.kind == "circuit_breaker":
            why = f": {pause.reason}" if pause.reason else ""
            answer = f"; {text}" if (text := self._last_answer(pause.held)) else ""
            return f"held by the circuit breaker of the connection {pause.name}, open since {pause.at}{why}{answer}"
        what = "" if pause.kind is None else f" with {'all sagas of' if pause.kind == 'saga' else 'the connection'} "
        because = f" because: {pause.reason}" if pause.reason else ""
        return f"paused{what}{pause.name or ''} by {pause.who} since {pause.at}{because}"

    def _last_answer(self, held: Collection[str]) -> str | None:
        """The last answer that this saga has had to a call that is held back, as a clause; None if there was none."""
        for step in self.steps:
            for row in (step, step.compensation, step.confirmation) if step.id in held else ():
                if (error := None if row is None else row.error) is None:
                    continue
                # That of a call that was not made has the answer to the last one that was.
                details, own = error.details or {}, error.type != PAUSED
                answered = {**details, "message": error.message} if own else details.get(ANSWERED)
                if isinstance(answered, Mapping) and isinstance(message := answered.get("message"), str):
                    status = answered.get("status")
                    number = f"{status}: " if isinstance(status, int) and str(status) not in message else ""
                    return f"the last answer to {step.id} was: {number}{message}"
        return None

    @property
    def resume_command(self) -> str:
        """The command that ends the pause of the saga."""
        pause = self.paused
        if pause is None or pause.kind is None:
            return saga_command("resume", self.id)
        return resume_command(pause.kind, pause.name or "")

    @property
    def waits_for_a_person(self) -> bool:
        """True when nothing can run until an operator decides, here or in a nested saga."""
        return self.state == "PARKED" or any(child.blocks == "saga" for child in self.children)
