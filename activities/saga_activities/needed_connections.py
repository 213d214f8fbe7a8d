"""The connections that an attempt needs, by which it is held back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sagas.builtins.callbacks import CALLBACK_ACTION
from sagas.builtins.messaging import REPLY_PROBE, REQUEST
from sagas.builtins.spark import RECONCILE, SPARK
from sagas.protocol.payloads import CLOSE_NESTED, NOTIFICATION_PREFIX, Invocation


def makes_call(invocation: Invocation, attempt: int) -> bool:
    """Return whether the attempt calls a participant for its saga, and so can be held back."""
    if invocation.action == CALLBACK_ACTION or invocation.entry.startswith(NOTIFICATION_PREFIX):
        return False  # the answer to a call that was made before, or a notification
    return not (invocation.at_most_once and attempt > 1)  # an earlier attempt may have had its effect


def runs_spark(invocation: Invocation) -> bool:
    """Return whether the attempt is a Spark job, or a comparison by one."""
    return invocation.action.partition(".")[0] in (SPARK, RECONCILE)


class NeededConnections:
    """The connections of the attempts of one worker.

    ``connection_of`` returns the connection of a Python action; ``outbox`` is the connection of requests.
    """

    def __init__(self, connection_of: Callable[[str], str | None], outbox: str | None = None) -> None:
        self._connection_of = connection_of
        self._outbox = outbox

    def of(self, invocation: Invocation) -> set[str]:
        """The names of the connections that the attempt needs."""
        names = self._connections_of(invocation.action, invocation.arguments)
        guard = invocation.guard
        if guard is not None:
            names.add(guard.connection)
            if isinstance(guard.confirmed, tuple):
                names |= self._connections_of(*guard.confirmed)
        return names

    def _connections_of(self, action: str, arguments: Mapping[str, Any]) -> set[str]:
        if action == CLOSE_NESTED:
            return set(arguments["connections"])
        if action in ("http", "sql"):
            return {name for name in (arguments.get("connection"),) if isinstance(name, str)}
        if action.partition(".")[0] in (SPARK, RECONCILE):
            return set(_named_connections(arguments))
        name = self._outbox if action in (REQUEST, REPLY_PROBE) else self._connection_of(action)
        return set() if name is None else {name}


def _named_connections(arguments: Any) -> list[str]:
    """The connections that inputs and outputs of a Spark job, or the sides of a comparison, name."""
    if isinstance(arguments, Mapping):
        own = [value for name, value in arguments.items() if name == "connection" and isinstance(value, str)]
        return own + [name for value in arguments.values() for name in _named_connections(value)]
    if isinstance(arguments, list | tuple):
        return [name for value in arguments for name in _named_connections(value)]
    return []
