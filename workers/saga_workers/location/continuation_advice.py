"""Advice about a saga without a run that can be started again: the command, and what a person does with it then, which
depends on whether it is past its point of no return.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from saga_workers.ledger.run_ledger import RunLedger
from saga_workers.location.commit_point import CommitTraces, find_commit_point
from sagas.definition.analysis.commit_evidence import commit_evidence
from sagas.text.continuation_words import CANCEL_BEFORE, CANCEL_OR_NOT, ONLY_FORWARD
from sagas.text.shell import saga_command

if TYPE_CHECKING:
    from saga_workers.location.traces import RecordedEffect
    from sagas.definition.model import Definition
    from sagas.project import Project
    from sagas.protocol.origin import Origin


class AdviceReader(Protocol):
    """A reader of the ledger and of the definitions of a project, such as a locator."""

    ledger: RunLedger
    project: Project | None


async def advice_after_start(
    reader: AdviceReader, saga_id: str, origin: Origin | None, effects: Sequence[RecordedEffect]
) -> str:
    """The next thing to do with the saga once it has been started again, by the ``effects`` under its id. Raises
    LedgerUnavailable.
    """
    definition = _definition(reader, origin)
    if origin is None or definition is None:
        return CANCEL_BEFORE
    evidence, digest = commit_evidence(definition), origin.whole_digest
    traces = CommitTraces(saga_id, origin.saga, origin.generation, digest, evidence, effects, origin.root_start)
    advice = {"past": ONLY_FORWARD, "before": CANCEL_OR_NOT, "unknown": CANCEL_BEFORE}
    return advice[await find_commit_point(reader.ledger, traces)]


def resume_options(reader: AdviceReader, saga_id: str, origin: Origin | None) -> str:
    """`saga resume` with the options for what neither the guards nor the project have; empty if it needs none.

    ``origin``: what the guards have kept of the start of the saga, None if they have nothing of it.
    """
    if origin is None:
        return ""
    is_other = reader.project is not None and _definition(reader, origin) is None
    definition = "FILE" if is_other or not origin.is_whole else None
    input = None if origin.has_input and origin.is_whole else "@FILE"
    if definition is None and input is None:
        return ""
    return saga_command("resume", saga_id, definition=definition, input=input)


def _definition(reader: AdviceReader, origin: Origin | None) -> Definition | None:
    """The definition with which the saga was started; None if the project has another one, or is not known."""
    if origin is None or reader.project is None:
        return None
    definition = reader.project.definitions.get(origin.saga)
    return definition if definition is not None and definition.digest == origin.digest else None
