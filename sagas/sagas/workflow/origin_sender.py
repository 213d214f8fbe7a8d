"""Sends the origin of a saga with its first guarded effects, until a guard has stored it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.actions.envelope import ENVELOPE
from sagas.machine.machine import Machine
from sagas.protocol.messages import Call
from sagas.protocol.origin import MAX_ORIGIN, encode_origin
from sagas.protocol.payloads import RECORD_RESULT


class OriginSender:
    """The origin of one run. Later effects need none: the guard has it already.

    Several first effects that run at the same time carry it, because any of them may be the only one that succeeds; as
    many as ``MAX_ORIGIN`` bytes allow.
    """

    def __init__(self) -> None:
        self._machine: Machine | None = None
        self._text = ""
        self._in_flight: set[str] = set()

    def begin(self, machine: Machine) -> None:
        """The saga has started, or goes on in this run."""
        self._machine = None if machine.effect_recorded else machine

    def attach(self, call: Call, argument: Mapping[str, Any]) -> None:
        """Add the origin to the argument of the call, if it is one of the first effects."""
        if self._machine is None or call.op != "do" or call.guard is None or not call.local:
            return
        if call.action == RECORD_RESULT:
            return
        if not self._text:
            self._text = encode_origin(self._machine.origin())
        if self._in_flight and len(self._text) * (len(self._in_flight) + 1) > MAX_ORIGIN:
            return
        self._in_flight.add(call.id)
        argument[ENVELOPE]["origin"] = self._text

    def ended(self, id: str, *, done: bool) -> None:
        """A call has ended."""
        if id in self._in_flight:
            self._in_flight.discard(id)
            if done:
                self._machine = None
