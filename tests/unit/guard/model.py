"""The guard's rules as a model: rows and effects of one generation as plain values, no database, no code of ours.

It is written from the guarantees, not from the guard, so that the two can disagree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Event = Literal["do", "refused_do", "undo", "undo_confirmed", "refused_undo", "confirm", "seal"]
"""One delivery. ``refused_…``: the action says no. ``undo_confirmed``: an undo that has an action for a confirmed
step."""

Answer = Literal["done", "rejected", "late", "nothing_to_undo", "confirmed", "sealed"]

EVENTS: tuple[Event, ...] = ("do", "refused_do", "undo", "undo_confirmed", "refused_undo", "confirm", "seal")


@dataclass(frozen=True)
class State:
    """The reasons of the three rows (None: no such row), and how often each action took effect."""

    do: str | None = None
    confirm: str | None = None
    undo: str | None = None
    applied: int = 0
    confirmed: int = 0
    undone: int = 0
    undone_confirmed: int = 0

    @property
    def net(self) -> int:
        return self.applied - self.undone - self.undone_confirmed

    @property
    def sealed(self) -> bool:
        return self.do == "undo"


def deliver(state: State, event: Event) -> tuple[Answer, State]:
    """What the guard must answer, and what must be there afterwards."""
    match event:
        case "do" | "refused_do":
            if state.do is None:
                if event == "refused_do":
                    return "rejected", state
                return "done", replace(state, do="do", applied=state.applied + 1)
            return ("late" if state.sealed or state.undo else "done"), state
        case "undo" | "undo_confirmed" | "refused_undo":
            return _undo(state, event)
        case "confirm":
            if state.do != "do" or state.undo:
                return "late", state
            if state.confirm is None:
                return "done", replace(state, confirm="confirm", confirmed=state.confirmed + 1)
            return "done", state
        case "seal":
            if state.do is None:
                return "sealed", replace(state, do="undo", confirm="undo", undo="undo")
            if state.sealed:
                return "sealed", state
            return ("late" if state.undo else "done"), state


def _undo(state: State, event: Event) -> tuple[Answer, State]:
    if state.do is None:
        return "nothing_to_undo", replace(state, do="undo", confirm="undo", undo="undo")
    if state.sealed:
        return "nothing_to_undo", state
    if state.undo:
        return "done", state
    if state.confirm == "confirm":
        if event != "undo_confirmed":
            return "confirmed", state
        return "done", replace(state, undo="undo", undone_confirmed=state.undone_confirmed + 1)
    if event == "refused_undo":
        return "rejected", state
    return "done", replace(state, confirm="undo", undo="undo", undone=state.undone + 1)


@dataclass(frozen=True)
class Watch:
    """What has been promised so far: nothing of the step is there, and nothing ever will be."""

    gone: bool = False


def violations(before: State, event: Event, answer: str, after: State, watch: Watch) -> list[str]:
    """Which promises this delivery broke. ``before`` and ``after`` come from whatever is under test."""
    told_do = event in ("do", "refused_do") and answer == "done"
    told_undo = event in ("undo", "undo_confirmed", "refused_undo") and answer in ("done", "nothing_to_undo")
    broken = {
        "an action took effect twice": after.applied > 1 or after.confirmed > 1,
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
    }
    return [name for name, is_broken in broken.items() if is_broken]


def watched(watch: Watch, event: Event, answer: str) -> Watch:
    """What is promised after ``answer``."""
    undone = event in ("undo", "undo_confirmed", "refused_undo") and answer in ("done", "nothing_to_undo")
    return Watch(gone=True) if undone or answer == "sealed" else watch
