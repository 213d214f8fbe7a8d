"""Every message a guard accepts, for any guard: over rows in memory, or on a database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.guard import Guard
from saga_activities.guard.rules import GuardedBody
from sagas.protocol.outcomes import Outcome

MakeBody = Callable[[str | None], GuardedBody]
"""An action with one effect (``applied``, ``undone``, …); None: it refuses."""

Send = Callable[[Guard, EntryKey, MakeBody, Mapping[str, Any]], Awaitable[Outcome | None]]

MESSAGES: Mapping[str, Send] = {
    "do": lambda guard, at, body, clock: guard.do(at, "hash", body("applied"), **clock),
    "do, refused": lambda guard, at, body, clock: guard.do(at, "hash", body(None), **clock),
    "do, other arguments": lambda guard, at, body, clock: guard.do(at, "other", body("applied"), **clock),
    "undo": lambda guard, at, body, clock: guard.undo(at, body("undone"), **clock),
    "undo, refused": lambda guard, at, body, clock: guard.undo(at, body(None), **clock),
    "undo, known to be done": lambda guard, at, body, clock: guard.undo(at, body("undone"), known_done=True, **clock),
    "undo, also confirmed": lambda guard, at, body, clock: guard.undo(
        at, body("undone"), confirmed_body=body("undone_confirmed"), **clock
    ),
    "undo, confirmed elsewhere": lambda guard, at, body, clock: guard.undo(
        at, body("undone"), confirmed_body="elsewhere", **clock
    ),
    "undo, elsewhere": lambda guard, at, body, clock: guard.undo(at, None, mode="mark", **clock),
    "undo, decided elsewhere": lambda guard, at, body, clock: guard.undo(at, body("undone"), mode="own", **clock),
    "confirm": lambda guard, at, body, clock: guard.confirm(at, body("confirmed"), **clock),
    "confirm, refused": lambda guard, at, body, clock: guard.confirm(at, body(None), **clock),
    "confirm, elsewhere": lambda guard, at, body, clock: guard.confirm(at, None, mode="mark", **clock),
    "confirm, decided elsewhere": lambda guard, at, body, clock: guard.confirm(
        at, body("confirmed"), mode="own", **clock
    ),
    "seal": lambda guard, at, body, clock: guard.seal(at, **clock),
    "done, says a person": lambda guard, at, body, clock: guard.record_manual_result(at, "do", {"by": "hand"}, **clock),
    "undone, says a person": lambda guard, at, body, clock: guard.record_manual_result(
        at, "undo", {"by": "hand"}, **clock
    ),
    "confirmed, says a person": lambda guard, at, body, clock: guard.record_manual_result(
        at, "confirm", {"by": "hand"}, **clock
    ),
    "release held": lambda guard, at, body, clock: guard.decide_held_events(at, committed=True, **clock),
    "drop held": lambda guard, at, body, clock: guard.decide_held_events(at, committed=False, **clock),
    "look up do": lambda guard, at, body, clock: guard.lookup(at, "do", "hash", deadline=clock["deadline"]),
    "look up undo": lambda guard, at, body, clock: guard.lookup(at, "undo", deadline=clock["deadline"]),
    "look up confirm": lambda guard, at, body, clock: guard.lookup(at, "confirm", deadline=clock["deadline"]),
}
