"""Sends the origin of a saga with its first guarded effects, until a guard has stored it, and with its first commands:
a saga may have no effect in a guard. All other calls to a guard, and commands, have a reference to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sagas.actions.envelope import ENVELOPE
from sagas.builtins.messaging import REPLY_PROBE, REQUEST
from sagas.machine.machine import Machine
from sagas.protocol.messages import Call
from sagas.protocol.origin import MAX_ORIGIN, encode_origin, reference_to


class OriginSender:
    """The origin of one run."""

    def __init__(self) -> None:
        self._machine: Machine | None = None
        self._text = self._reference = ""
        self._guarded, self._commands = _Carriers(), _Carriers()

    def begin(self, machine: Machine) -> None:
        """The saga has started, or goes on in this run."""
        self._machine = machine
        self._guarded.are_needed = not machine.effect_recorded
        self._commands.are_needed = self._guarded.are_needed and not machine.command_recorded

    def attach(self, call: Call, argument: Mapping[str, Any]) -> None:
        """Add the origin to the argument of a call that is one of the first effects or commands, else a reference."""
        if self._machine is None or not call.local:
            return
        if call.guard is None and call.action not in (REQUEST, REPLY_PROBE):
            return
        if not self._reference:
            self._reference = encode_origin(reference_to(self._machine.origin()))
        argument[ENVELOPE]["origin"] = self._reference
        if call.op != "do":
            return
        carriers = self._commands if call.action == REQUEST else self._guarded
        if carriers.are_needed and not self._text:
            self._text = encode_origin(self._machine.origin())
        if carriers.take(call.id, len(self._text)):
            argument[ENVELOPE]["origin"] = self._text

    def ended(self, id: str, *, done: bool) -> None:
        """A call has ended."""
        self._guarded.ended(id, done=done)
        self._commands.ended(id, done=done)
        self._commands.are_needed &= self._guarded.are_needed


@dataclass(slots=True)
class _Carriers:
    """The calls that carry the origin to one kind of row.

    Several first ones that run at the same time carry it, because any of them may be the only one that succeeds; as
    many as ``MAX_ORIGIN`` bytes allow.
    """

    are_needed: bool = True
    in_flight: set[str] = field(default_factory=set[str])

    def take(self, id: str, size: int) -> bool:
        if not self.are_needed or (self.in_flight and size * (len(self.in_flight) + 1) > MAX_ORIGIN):
            return False
        self.in_flight.add(id)
        return True

    def ended(self, id: str, *, done: bool) -> None:
        if id in self.in_flight:
            self.in_flight.discard(id)
            self.are_needed &= not done
