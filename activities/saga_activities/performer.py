"""Built-in actions with long work outside their guarded transaction: the dispatcher's door to other rooms."""

from __future__ import annotations

from typing import Any, Protocol

from saga_activities.attempt import Attempt, Body
from sagas.wire import Invocation


class Performer(Protocol):
    """Performs one or more built-in actions, told apart by ``invocation.action`` (a ``confirmed`` action is given as
    ``action``).

    ``prepare`` does what may take long: before the guard's transaction, so that no lock is held meanwhile. It is not
    called for an operation whose guard row is already there. What it returns runs inside the transaction, as soon as
    the guard has decided that the operation may happen. Both may raise Rejected (a definite no), Parked (only a
    person can go on), Infrastructure (try again) or anything else (failed); whatever they raise, the caller may rely
    on it that nothing has become visible. The caller repeats the attempt's last heartbeat all the time.
    """

    async def prepare(self, action: str, invocation: Invocation, attempt: Attempt) -> Body:
        """The work before the transaction."""
        ...

    async def read(self, invocation: Invocation, attempt: Attempt) -> Any:
        """Perform an action without an effect and without a guard; its JSON result."""
        ...

    async def close(self) -> None:
        """The worker stops: end what still runs."""
        ...
