"""Sessions of browsers: a random id in a cookie stands for a token, which stays in this process."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from saga_workers.serve.console.request_answers import RequestAnswers
from saga_workers.serve.limits import MAX_SESSIONS_OF_TOKEN, SESSION_SECONDS

COOKIE = "saga_console"


@dataclass(frozen=True, slots=True)
class Session:
    """A browser that has signed in. ``form_token`` is in each of its forms, so that no other page can send one.
    ``answers``: those to its requests.

    ``authorization`` is the header that stands for the token: it is looked up with every request, so a token that was
    changed ends its sessions.
    """

    caller: str
    authorization: str = field(repr=False)
    expires_at: float
    id: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    form_token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    answers: RequestAnswers = field(default_factory=RequestAnswers, repr=False, compare=False)


class Sessions:
    """The sessions of one process, by their ids. ``clock`` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sessions: dict[str, Session] = {}

    def begin(self, caller: str, authorization: str) -> Session:
        """Begin a session; of too many with one token the oldest ends."""
        now = self._clock()
        self._sessions = {id: session for id, session in self._sessions.items() if session.expires_at > now}
        of_token = [id for id, session in self._sessions.items() if session.caller == caller]
        for id in of_token[: max(0, len(of_token) - MAX_SESSIONS_OF_TOKEN + 1)]:
            del self._sessions[id]
        session = Session(caller, authorization, now + SESSION_SECONDS)
        self._sessions[session.id] = session
        return session

    def find(self, id: str | None) -> Session | None:
        """The session with the id that a cookie has; None if there is none, or not any more."""
        session = self._sessions.get(id or "")
        return session if session is not None and session.expires_at > self._clock() else None

    def end(self, session: Session) -> None:
        self._sessions.pop(session.id, None)
