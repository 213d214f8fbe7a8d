"""Decides whether anybody will end a saga, by where it lives and by its effects in the guards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from saga_workers.location.known_ends import knows_end
from saga_workers.location.location import BulkMember, Location
from saga_workers.location.locator import Locator
from saga_workers.location.parent_command import is_undone
from saga_workers.stuck.counted_children import counts_as_done, has_counting_parent, parent_that_decides
from saga_workers.stuck.lost_effects import has_ended_before, lost_effects, may_have_ended
from saga_workers.stuck.missing_parents import MissingParent, find_missing_parent, missing_starts
from saga_workers.temporal.begun_runs import has_begun
from saga_workers.temporal.holding_runs import holder_in_words
from saga_workers.temporal.machine_query import read_definition
from saga_workers.temporal.saga_input import first_input
from saga_workers.temporal.temporal_runs import RunDescription, RunInfo
from saga_workers.temporal.unanswered_resets import THEN_LOOKS_BACK, closed_before_answer
from saga_workers.views.saga_view import read_view
from sagas.definition.times import format_timestamp
from sagas.protocol.origin import same_start
from sagas.protocol.payloads import UNDO_SUFFIX
from sagas.protocol.saga_view import OVER, SagaView, StepView
from sagas.settings import Settings
from sagas.text.continuation_words import CANCEL_BEFORE
from sagas.text.shell import reset_command, saga_command

if TYPE_CHECKING:
    from saga_workers.location.traces import RecordedEffect

RUN_DELETED = "Temporal has no run of it any more"

_IF_IT_HAD_NOT = "no ledger tells whether it had ended: look at its effects, and if it had not"

Verdict = Literal["deleted", "replaced", "id taken", "terminated", "claim left", "undo deleted", "unreadable"]
"""``deleted``: Temporal has no run of the saga any more. ``replaced``: a later run has its id, of another workflow, or
started with another input or at another time. ``id taken``: such a run finds the effects of a saga that has ended.
``terminated``: its run, or that of its undo, was closed from outside.
``claim left``: its bulk workflow was closed before the saga had ended, or deleted before it had an effect.
``undo deleted``: its undo has begun, and Temporal has no run of it any more. ``unreadable``: a run has its id whose
input cannot be read here, so nobody can say whether it will end these effects.
"""

_EFFECT_STATES = ("DONE", "CONFIRMED", "CONFIRMING", "RUNNING", "UNKNOWN", "COMPENSATING", "PARKED")


@dataclass(frozen=True, slots=True)
class OpenSaga:
    """A saga with open effects that no run will undo or complete.

    ``saga``: its name, if known. ``holds``: what it has in the databases, in words. ``outcome``: what `saga resume`
    does with it, if that is known. ``parent``: the id of the saga that starts a deleted nested one again. ``holder``:
    the run that has its id, in words, if it is one of another workflow, or why it cannot be read; ``id_is_in_use``: it
    is open, and has the ``used_id``. ``view``: that of an interrupted undo. ``may_have_ended``: nobody knows whether it
    had ended, so that its effects may be meant to stay. ``resume``: its `saga resume` with the options that it needs,
    empty without any, or the reset that has to come first; ``then``: what a person does after that.
    """

    saga_id: str
    verdict: Verdict
    saga: str | None
    holds: tuple[str, ...] = ()
    outcome: str = ""
    parent: str | None = None
    holder: str = ""
    id_is_in_use: bool = False
    used_id: str = "its id"
    view: SagaView | None = None
    may_have_ended: bool = False
    resume: str = ""
    then: str = CANCEL_BEFORE

    @property
    def command(self) -> str:
        """The command that continues the saga, or shows how its parent does."""
        if self.verdict == "undo deleted":
            return undo_again_command(self.saga_id)
        if self.verdict in ("id taken", "unreadable"):
            return saga_command("show", self.saga_id)
        if self.parent is not None:
            return saga_command("show", self.parent)
        return self.resume or saga_command("resume", self.saga_id)

    @property
    def is_resumed(self) -> bool:
        """True if `saga resume` with its own id continues the saga."""
        return self.parent is None and self.verdict not in ("undo deleted", "id taken", "unreadable")

    @property
    def reason(self) -> str:
        """The sentence about the saga, with its command."""
        holds = "; ".join(self.holds)
        match self.verdict:
            case "deleted":
                what = f"{RUN_DELETED}, and it has {holds}"
                if self.parent is not None:
                    return f"{what}: it is nested in {self.parent}, which starts it again; see `{self.command}`"
                if self.outcome:
                    return f"{what}: `{self.command}` {self.outcome}"
                return self._unless_ended(what, f"start it again with `{self.command}`, {self.then}")
            case "replaced" if self.id_is_in_use:
                what = f"{self.holder} has {self.used_id}, and its own effects are open ({holds})"
                ended = "wait for the end of that run" if self.may_have_ended else "end that run, or wait for its end"
                return self._unless_ended(what, f"{ended}, and then `{self.command}`")
            case "replaced" if self.holder:
                what = f"{self.holder} has had its id since, and its own effects are open ({holds})"
                return self._unless_ended(what, f"continue it with `{self.command}`")
            case "replaced" if self.may_have_ended:
                what = f"an earlier saga with its id, of which Temporal has no run any more, has effects ({holds})"
                own = f"otherwise start this one with an id of its own, see `{saga_command('show', self.saga_id)}`"
                return f"{self._unless_ended(what, f'continue it with `{self.command}`')}; {own}"
            case "replaced":
                what = "a run with another input was ended by the start of this one, and its effects are open"
                return f"{what} ({holds}): continue that run with `{self.command}`"
            case "id taken":
                what = f"an earlier saga with its id has ended, so the effects of that one stay ({holds})"
                return f"{what}: start it with an id of its own, and end this run, see `{self.command}`"
            case "terminated" if self.parent is not None:
                return f"terminated with {holds}: {self.outcome}; see `{self.command}`"
            case "terminated":
                return f"terminated with {holds}: `{self.command}` {self.outcome}"
            case "undo deleted":
                return f"Temporal has no run of its undo any more ({holds}): finish it with `{self.command}`"
            case "unreadable":
                return f"{self.holder}, so nobody can say here whether that run ends its effects: look where the key is"
            case "claim left":
                return f"its bulk workflow was closed before it ended: continue it with `{self.command}`"

    def _unless_ended(self, what: str, remedy: str) -> str:
        return f"{what}; {_IF_IT_HAD_NOT}, {remedy}" if self.may_have_ended else f"{what}: {remedy}"

    def merged_with(self, other: OpenSaga | None) -> OpenSaga:
        """One finding of the two about a saga, which has what each of them says that it has."""
        if other is None:
            return self
        named = self if self.saga is not None else other
        return replace(
            named,
            holds=tuple(dict.fromkeys((*other.holds, *self.holds))),
            may_have_ended=self.may_have_ended and other.may_have_ended,
        )

    @property
    def bare_view(self) -> SagaView:
        """The view of a saga of which only the databases of the project know, or of an interrupted undo."""
        if self.view is not None:
            return replace(self.view, stuck=(self.reason,))
        return SagaView(
            id=self.saga_id,
            saga=self.saga or "unknown",
            generation=None,
            state="TERMINATED",
            phase=None,
            incomplete=RUN_DELETED,
            stuck=(self.reason,),
            needs_resume=self.is_resumed,
            continue_command=self.resume or None if self.is_resumed else None,
        )

    def mark(self, view: SagaView) -> SagaView:
        """The ``view`` of a run that has the id of the saga, with the command that continues the saga."""
        if not self.is_resumed:
            return replace(view, needs_resume=None, continue_command=None)
        return replace(view, needs_resume=True, continue_command=self.resume or None)

    def mark_terminated(self, view: SagaView) -> SagaView:
        """The ``view`` of the terminated run, which `saga resume` does not continue if the parent has to decide."""
        return view if self.parent is None else replace(view, needs_resume=False)


def undo_again_command(saga_id: str) -> str:
    """The command that finishes an undo without a run, under the same keys."""
    return saga_command("undo", saga_id, reason="its undo was interrupted")


def verdict_of(location: Location) -> Verdict | None:
    """The verdict about a saga that lives there: ``deleted`` holds only if its effects are open, see
    :func:`lost_saga`. None: a run of it is open, or it has ended.
    """
    member, row = location.member, location.row
    undo = None if location.undo is None or location.undo.never_accepted else location.undo
    if location.open_run is not None or location.kind == "in bulk":
        return None
    if undo is not None and not undo.run.ended_from_outside:
        return None  # it was undone or continued, and has ended
    if location.kind == "unknown" or (member is not None and member.bulk is None):
        return "deleted"
    if row is not None:
        return "deleted" if undo is not None or row.view.state not in OVER else None
    if member is not None:
        return "claim left"
    return "terminated" if undo is not None or location.kind == "terminated" else None


async def judge(locator: Locator, settings: Settings, location: Location) -> Verdict | None:
    """The verdict that also regards the effects of the saga in the guards. Raises SagaError."""
    from saga_workers.location.traces import open_effects, recorded_effects

    run, verdict = location.run, verdict_of(location)
    if run is not None and run.run.running:
        if run.run.parent_id is not None:
            return None
        view = await read_view(locator, location.saga_id)
        if view.state == "PARKED" and (other := await replaced_saga(locator, settings, run, view)) is not None:
            return other.verdict
        if view.paused is not None:
            return None
    effects = await recorded_effects(settings, location.saga_id)
    if verdict == "deleted" and location.member is not None:
        return "deleted" if open_effects(effects) else "claim left"
    if await lost_effects(locator, location, effects):
        return "replaced" if location.open_run is not None else "deleted"
    if not effects and await missing_starts(locator, settings, location):
        return "replaced" if location.open_run is not None else "deleted"
    return verdict


async def lost_saga(
    locator: Locator, location: Location, effects: Sequence[RecordedEffect], held: Sequence[str] = ()
) -> OpenSaga | None:
    """The saga at this location, if some of its ``effects`` are open and no run will end them. ``held``: what else it
    holds. Raises SagaError.
    """
    from saga_workers.location.continuation_advice import advice_after_start, resume_options
    from saga_workers.location.traces import open_origin

    lost = await lost_effects(locator, location, effects)
    if not lost:
        return None  # if nothing is to be undone, what it holds may be released
    judged = await _judged_effects(locator, location, effects, lost, held)
    if judged is None or judged.saga_id != location.saga_id or not judged.is_resumed:
        return judged
    origin = open_origin(lost) or next((effect.origin for effect in effects if effect.origin is not None), None)
    resume = resume_options(locator, location.saga_id, origin)
    return replace(judged, resume=resume, then=await advice_after_start(locator, location.saga_id, origin, lost))


async def _judged_effects(
    locator: Locator,
    location: Location,
    effects: Sequence[RecordedEffect],
    lost: Sequence[RecordedEffect],
    held: Sequence[str],
) -> OpenSaga | None:
    """The saga that has ``lost`` the run which would end these of its ``effects``."""
    from saga_workers.location.traces import open_effects

    origin = next((effect.origin for effect in [*lost, *effects] if effect.origin is not None), None)
    if origin is not None and origin.parent is not None:
        if await is_undone(locator, await locator.locate(origin.parent), location.saga_id, origin):
            named, outcome = (f"open effects: {open_effects(lost)}", *held), f"undoes it, as {origin.parent} is undone"
            return OpenSaga(location.saga_id, "deleted", origin.saga, named, outcome)
        if await counts_as_done(locator, origin.parent, location.saga_id, origin.root_start):
            return None
        missing = await find_missing_parent(locator, location.saga_id, origin)
        if missing is not None:
            named = f"open effects of {location.saga_id}: {open_effects(lost)}"
            parent = _parent_of_effects(missing, named, may_have_ended=not await knows_end(locator.ledger, lost))
            return replace(parent, resume=await _resume_of_parent(locator, missing.saga_id))
    saga = location.saga if origin is None else origin.saga
    parent = None if origin is None else origin.parent
    holds = (f"open effects: {open_effects(lost)}", *held)
    # One that holds something has not ended.
    may_have = not held and parent is None and await may_have_ended(locator, location, lost)
    described, undo = location.run, location.undo
    if undo is not None and undo.run.running and parent is None:
        holder, used_id = holder_in_words(undo.run), "the id of its undo"
        replaced = OpenSaga(
            location.saga_id, "replaced", saga, holds, holder=holder, id_is_in_use=True, used_id=used_id
        )
        return replace(replaced, may_have_ended=may_have)
    if described is None or described.never_accepted or parent is not None or origin is None:
        return OpenSaga(location.saga_id, "deleted", saga, holds, parent=parent, may_have_ended=may_have)
    run = described.run
    if run.close_time is not None and run.close_time.timestamp() < origin.started_at:
        return OpenSaga(location.saga_id, "deleted", saga, holds, may_have_ended=may_have)
    is_other = run.workflow_type != origin.saga or run.running
    holder = holder_in_words(run) if is_other else ""
    other = OpenSaga(location.saga_id, "replaced", saga, holds, holder=holder, id_is_in_use=is_other and run.running)
    return replace(other, may_have_ended=may_have)


async def _resume_of_parent(locator: Locator, parent: str) -> str:
    """The `saga resume` of a saga of which Temporal has no run, with the options for what its own effects do not tell.
    Raises SagaError.
    """
    from saga_workers.location.continuation_advice import resume_options
    from saga_workers.location.traces import recorded_effects

    effects = [] if locator.settings is None else await recorded_effects(locator.settings, parent)
    origin = next((effect.origin for effect in effects if effect.origin is not None), None)
    if origin is None:
        return saga_command("resume", parent, definition="FILE", input="@FILE")
    return resume_options(locator, parent, origin)


def _parent_of_effects(missing: MissingParent, holds: str, *, may_have_ended: bool) -> OpenSaga:
    """The missing saga to whose nested sagas the effects belong; its name is not known."""
    holder = missing.holder
    if holder is None:
        return OpenSaga(missing.saga_id, "deleted", None, (holds,), may_have_ended=may_have_ended)
    other = OpenSaga(missing.saga_id, "replaced", None, (holds,), holder=holder_in_words(holder))
    return replace(other, id_is_in_use=holder.running, may_have_ended=may_have_ended)


async def replaced_saga(
    locator: Locator, settings: Settings, described: RunDescription, view: SagaView | None = None
) -> OpenSaga | None:
    """The saga whose effects this run ran into, if they are of a run with another input or, by the ``view`` of this
    run, of another time. It may have ended. Raises SagaError.
    """
    from saga_workers.location.traces import open_effects, open_origin, recorded_effects

    saga_id = described.run.id.removesuffix(UNDO_SUFFIX)
    effects = await recorded_effects(settings, saga_id)
    origin = open_origin(effects)
    if origin is None or origin.parent is not None:
        return None
    # A saga that was started again from its beginning has another `saga.started_at`, which may be in its arguments.
    began = format_timestamp(origin.started_at)
    began_later = view is not None and view.generation == origin.generation and view.started_at != began
    workflow_type = described.run.workflow_type
    if not began_later and same_start(
        origin, workflow_type, await first_input(locator.temporal, described, locator.keys)
    ):
        return None
    holds = (open_effects(effects),)
    if await has_ended_before(locator, saga_id, origin):
        return OpenSaga(saga_id, "id taken", origin.saga, holds)
    may_have = await may_have_ended(locator, Location(saga_id, described), effects)
    return OpenSaga(saga_id, "replaced", origin.saga, holds, may_have_ended=may_have)


async def terminated_saga(locator: Locator, run: RunInfo, view: SagaView) -> OpenSaga | None:
    """The saga with this view, if its ``run``, or that of its undo, was closed from outside and left effects; None for
    a nested one that its parent has as done.
    """
    saga = await _terminated_saga(locator, run, view)
    decides = None if saga is None else await parent_that_decides(locator, run)
    if saga is None or decides is None:
        return saga
    parent, refusal = decides
    return replace(saga, parent=parent, outcome=refusal.message, resume="")


async def _terminated_saga(locator: Locator, run: RunInfo, view: SagaView) -> OpenSaga | None:
    if view.state != "TERMINATED":
        return None
    saga_id = run.id.removesuffix(UNDO_SUFFIX)
    if await closed_before_answer(locator.temporal, run, locator.keys):
        if await has_counting_parent(locator, run):
            return None
        unknown = ("unknown effects: its run was closed before it had looked up what the saga had done before",)
        reset = reset_command(run.id)
        return OpenSaga(saga_id, "terminated", view.saga, unknown, THEN_LOOKS_BACK, resume=reset)
    if not has_open_effects(view) or await has_counting_parent(locator, run):
        return None
    if not view.steps:
        if not run.id.endswith(UNDO_SUFFIX) and not await has_begun(locator.temporal, run):
            return None  # it has called nothing
        unknown = f"unknown effects: {view.incomplete or 'it cannot be queried'}"
        outcome = "undoes them before the commit point, and finishes the saga after it"
        return OpenSaga(saga_id, "terminated", view.saga, (unknown,), outcome)
    definition = await read_definition(locator.temporal, run, locator.settings)
    reads = [step.id for step in definition.steps if step.kind == "read"] if definition else []
    effects = [step.id for step in view.steps if _has_begun(step) and step.step not in reads]
    if not effects:
        return None
    committed = view.phase == "committed"
    outcome = "finishes the saga, which is past its commit point" if committed else "undoes them"
    return OpenSaga(saga_id, "terminated", view.saga, (f"open effects: {', '.join(effects)}",), outcome)


def left_saga(member: BulkMember) -> OpenSaga:
    """The saga that a bulk workflow has left."""
    return OpenSaga(member.claim.saga_id, "claim left", member.claim.saga)


def has_open_effects(view: SagaView) -> bool:
    """Return whether the saga is TERMINATED and may have left effects, as far as its view tells."""
    return view.state == "TERMINATED" and (not view.steps or any(map(_has_begun, view.steps)))


def _has_begun(step: StepView) -> bool:
    return step.state in _EFFECT_STATES and step.started_at is not None
