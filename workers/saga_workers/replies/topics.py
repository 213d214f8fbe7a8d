"""The topics in which replies may come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sagas.builtins_request import REQUEST, default_reply_topic
from sagas.definition.model import Definition, Operation, Step


def reply_topics(definitions: Mapping[str, Definition], prefix: str) -> list[str]:
    """Those that the definitions name, and the default one if there is any request; none without requests."""
    found = {
        str((one.with_ or {}).get("reply_topic") or default_reply_topic(prefix))
        for definition in definitions.values()
        for step in definition.steps
        for one in _operations(step)
        if one.uses == REQUEST
    }
    # Sagas that began with an older definition may still wait for the default one.
    return sorted(found | {default_reply_topic(prefix)}) if found else []


def _operations(step: Step) -> Iterator[Operation]:
    yield step.do
    if step.compensate is not None:
        yield from step.compensate.alternates
        if step.compensate.confirmed is not None:
            yield step.compensate.confirmed
    if step.confirm is not None:
        yield step.confirm
