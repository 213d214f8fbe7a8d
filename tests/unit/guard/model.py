"""The guard's rules as a model: rows and effects of one generation as plain values, no database, no code of ours.

It is written from the guarantees, not from the guard, so that the two can disagree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Event = Literal[
    "do",
    "refused_do",
    "undo",
    "undo_confirmed",
    "undo_of_others",
    "constraint_conflict",
    "confirm",
    "seal",
    "ask_committed",
    "ask_over",
]
"""One delivery. ``refused_…``: the action rejects. ``undo_confirmed``: an undo that has an action for a confirmed
step. ``undo_of_others``: one of an effect with other arguments. ``ask_…``: a check-back for the step's held event found
the saga committed, or finished without it."""

CommandResult = Literal[
    "done", "rejected", "late", "nothing_to_undo", "confirmed", "sealed", "release", "drop", "failed"
]
"""``failed``: the saga parks, and an operator decides."""

EVENTS: tuple[Event, ...] = (
    "do",
    "refused_do",
    "undo",
    "undo_confirmed",
    "undo_of_others",
    "constraint_conflict",
    "confirm",
    "seal",
    "ask_committed",
    "ask_over",
)

UNDOS: tuple[Event, ...] = ("undo", "undo_confirmed", "undo_of_others", "constraint_conflict")


@dataclass(frozen=True)
class State:
    """The reasons of the three rows (None: no such row), how often each action took effect, and what has become of the
    event that the step emitted with `hold`."""

    do: str | None = None
    confirm: str | None = None
    undo: str | None = None
    applied: int = 0
    confirmed: int = 0
    undone: int = 0
    undone_confirmed: int = 0
    event: str | None = None

    @property
    def net(self) -> int:
        return self.applied - self.undone - self.undone_confirmed

    @property
    def sealed(self) -> bool:
        return self.do == "undo"


def deliver(state: State, event: Event) -> tuple[CommandResult, State]:
    """The answer that the guard must give to an event, and the state afterwards."""
    match event:
        case "do" | "refused_do":
            if state.do is None:
                if event == "refused_do":
                    return "rejected", state
                return "done", replace(state, do="do", applied=state.applied + 1, event="HELD")
            return ("late" if state.sealed or state.undo else "done"), state
        case "undo" | "undo_confirmed" | "undo_of_others" | "constraint_conflict":
            return _undo(state, event)
        case "confirm":
            if state.do != "do" or state.undo:
                return "late", state
            if state.confirm is None:
                return "done", _settled(replace(state, confirm="confirm", confirmed=state.confirmed + 1), "NEW")
            return ("late" if state.confirm == "undo" else "done"), state
        case "seal":
            if state.do is None:
                return "sealed", replace(state, do="undo", confirm="undo", undo="undo")
            if state.sealed:
                return "sealed", state
            return ("late" if state.undo else "done"), state
        case "ask_committed":
            return "release", _settled(state, "NEW")
        case "ask_over":
            if state.do is None:
                return "drop", replace(state, do="undo", confirm="undo", undo="undo")
            return "drop", _settled(replace(state, confirm=state.confirm or "undo"), "DROPPED")


def _settled(state: State, event: str) -> State:
    return replace(state, event=event) if state.event == "HELD" else state


def _undo(state: State, event: Event) -> tuple[CommandResult, State]:
    if state.do is None:
        return "nothing_to_undo", replace(state, do="undo", confirm="undo", undo="undo")
    if state.sealed:
        return "nothing_to_undo", state
    if event == "undo_of_others":
        return "failed", state
    if state.undo:
        return "done", state
    if state.confirm == "confirm":
        if event != "undo_confirmed":
            return "confirmed", state
        return "done", replace(state, undo="undo", undone_confirmed=state.undone_confirmed + 1)
    if event == "constraint_conflict":
        return "rejected", state
    return "done", _settled(replace(state, confirm="undo", undo="undo", undone=state.undone + 1), "DROPPED")


@dataclass(frozen=True)
class Watch:
    """Promises so far: nothing of the step is there, and nothing ever will be."""

    gone: bool = False


def violations(before: State, event: Event, answer: str, after: State, watch: Watch) -> list[str]:
    """Promises that a delivery broke. ``before`` and ``after`` come from the guard or model under test."""
    told_do = event in ("do", "refused_do") and answer == "done"
    released = after.event == "NEW" and before.event != "NEW"
    told_undo = event in UNDOS and answer in ("done", "nothing_to_undo")
    broken = {
        "an action took effect twice": after.applied > 1 or after.confirmed > 1,
        "an effect with other arguments was undone": event == "undo_of_others" and after.undone > before.undone,
        "told undone, and the effect with other arguments is ignored": event == "undo_of_others"
        and answer in ("done", "nothing_to_undo")
        and before.applied == 1,
        "it was compensated twice": after.undone + after.undone_confirmed > 1,
        "something was undone that never happened": after.undone + after.undone_confirmed > after.applied,
        "an effect after the compensation or the seal": watch.gone and after.net != 0,
        "compensated, and the effect is still there": told_undo and after.net != 0,
        "sealed, and the effect is there": answer == "sealed" and after.net != 0,
        "told done without an effect": told_do and after.applied != 1,
        "a seal told done without an effect": event == "seal" and answer == "done" and after.net != 1,
        "refused although nothing was undone": event == "do" and answer == "late" and not watch.gone,
        "told done after it was undone": told_do and watch.gone,
        "confirmed without a standing effect": after.confirmed > before.confirmed and before.net != 1,
        "told confirmed after it was undone": event == "confirm" and answer == "done" and watch.gone,
        "a confirmed effect was undone by the wrong action": after.undone > before.undone and before.confirmed == 1,
        "an unconfirmed effect was undone by the wrong action": (
            after.undone_confirmed > before.undone_confirmed and before.confirmed == 0
        ),
        "the event of a compensated step was released": released and (after.undone > 0 or watch.gone),
        "the event of a confirmed step was dropped": after.confirmed > 0 and after.event == "DROPPED",
        "compensated, and its event is still held": told_undo and after.event == "HELD",
        "confirmed, and its event is still held": after.confirmed > 0 and after.event == "HELD",
        "told confirmed, and its event is dropped": event == "confirm"
        and answer == "done"
        and after.event == "DROPPED",
        "a dropped event came back": before.event == "DROPPED" and after.event != "DROPPED",
    }
    return [name for name, is_broken in broken.items() if is_broken]


def watched(watch: Watch, event: Event, answer: str, after: State) -> Watch:
    """The guarantees after ``answer``; a check-back may have sealed the step."""
    undone = event in UNDOS and answer in ("done", "nothing_to_undo")
    return Watch(gone=True) if undone or answer == "sealed" or after.sealed else watch
