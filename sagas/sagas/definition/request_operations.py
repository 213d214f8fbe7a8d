"""What the engine adds to a `kafka.request` step: the time a reply may take, and a probe that looks for a late one."""

from __future__ import annotations

from dataclasses import replace

from sagas.builtins_request import REPLY, REQUEST
from sagas.definition.model import Operation, Probe, Retry, Step


def reply_probe(do: Operation) -> Probe:
    """Looks whether the reply was recorded. Where the command was never written it sees to it that none will be."""
    operation = replace(do, uses=REPLY, with_={}, timeout=30.0, retry=Retry(), rejects=False, seals=True)
    return Probe(operation)


def has_reply_probe(step: Step) -> bool:
    """True for a request whose author wrote no probe of his own."""
    return step.probe is not None and step.probe.operation.uses == REPLY


def without_beats(uses: str, heartbeat: float | None) -> float | None:
    """Nobody beats for an attempt that no worker holds: Temporal would take it for dead."""
    return None if uses == REQUEST else heartbeat
