"""The words of the console for people who know the business and not the engine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

PAUSED = "‖"
"""Many fonts lack the usual symbol of a pause."""


class StateWords(NamedTuple):
    """A state of a saga: a symbol, a few words, and a sentence."""

    symbol: str
    title: str
    meaning: str


STATE_WORDS: Mapping[str, StateWords] = {
    "PARKED": StateWords(PAUSED, "waits for a decision", "It goes on when a person has decided what to do."),
    "RUNNING": StateWords("▶", "running", "Its steps are being done. If it cannot succeed, they are undone."),
    "COMMITTED": StateWords("▶", "finishing", "It is past the point of no return: the rest will be done, not undone."),
    "COMPENSATING": StateWords("↩", "being undone", "It could not succeed, so what was done is being undone."),
    "COMPLETED": StateWords("✔", "completed", "All of it was done."),
    "COMPENSATED": StateWords("↩", "undone", "It could not succeed, and everything that it had done was undone."),
    "RESIDUE": StateWords("!", "ended with leftovers", "It has ended, but some effects stay or are missing."),
    "TERMINATED": StateWords(
        "✖", "stopped from outside", "It was stopped from outside: nothing was undone, and nothing will be by itself."
    ),
    "FAILED": StateWords("✖", "refused", "It was refused before its first step: nothing was done."),
}

DECISION_WORDS: Mapping[str, str] = {
    "retry": "it is called once more",
    "done": "it has happened, or was done by hand: go on",
    "skip": "leave it out; what it has done, or should have done, may stay open",
    "compensate": "give up, and undo what was done so far",
}

REQUEST_WORDS: Mapping[str, str] = {
    "cancel": "Cancel and undo",
    "pause": "Pause",
    "resume": "Let it go on",
    "signal": "Send the signal",
    "undo": "Undo all of it",
    "retry": "Try again",
    "done": "Take it as done",
    "skip": "Leave it out",
    "compensate": "Give up and undo",
}
"""The requests of people to a saga, as a button names them."""

FIELD_LABELS: Mapping[str, str] = {
    "reason": "Why",
    "evidence": "How you know it",
    "with": "Other arguments than before",
    "result": "The result of the step",
    "data": "The data",
    "reject": "Reject the step instead",
}
"""The fields of a form, as their labels name them."""

REQUEST_MEANINGS: Mapping[str, str] = {
    "cancel": "It stops, and what it has done is undone. Past its point of no return it refuses that. If it is over, "
    "its event starts it no more.",
    "pause": "It begins nothing new until somebody lets it go on. What is under way ends, and clocks run.",
    "resume": "It begins what was held back, and goes on.",
    "signal": "The step that waits for it ends with these data, or is rejected. The first signal of a name counts.",
    "undo": "It is completed. What it has done is undone, the last first.",
}

EVIDENCE_WORDS: Mapping[str, str] = {
    "compensate do": "what shows that it has not happened",
    "done do": "what shows that it has happened",
    "done undo": "what shows that it is undone",
    "done confirm": "what shows that it is confirmed",
}
"""The knowledge that a decision needs, by the decision and its operation."""

ANSWER_WORDS: Mapping[str, str] = {
    "accepted": "The saga has accepted it",
    "recorded": "The saga has recorded it",
    "already": "There was nothing to do",
    "requested": "The saga has been asked",
    "paused": "The saga is paused",
    "resumed": "The saga goes on",
    "sent": "The signal was sent",
    "rejected": "The saga was told to reject the step",
    "undoing": "The saga is being undone",
}
"""The answers of a saga to the requests of people."""

OPERATION_WORDS: Mapping[str, str] = {
    "do": "The step itself",
    "undo": "The undo of the step",
    "confirm": "The confirmation of the step",
}

EVENT_WORDS: Mapping[str, str] = {
    "NEW": "waits to be published",
    "HELD": "waits for the point of no return of its saga",
    "PUBLISHED": "published",
    "SUSPENDED": "waits until its topic can be used",
    "DROPPED": "dropped",
    "REFUSED": "refused by the broker",
}

_OPTION = re.compile(r"--(reason|evidence|with|result)\b")


def in_form_words(message: str) -> str:
    """A message of a command, with the labels of the form in place of its options."""
    return _OPTION.sub(lambda option: f"“{FIELD_LABELS[option[1]]}”", message)
