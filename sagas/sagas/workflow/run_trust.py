"""The trust of a run in its start, in messages to it, and in the answers of the engine's own activities.

A client that polls the project's task queue, or starts a run with its first task in hand, can write any history. So
nothing of a history is believed because it is there: a worker repeats the checks of signatures in a replay, and signs
nothing for a run in whose history one fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from temporalio import workflow

UNTRUSTED = "untrusted"
"""The Temporal marker in the history of a run that its first worker did not trust at once."""

UNSIGNED_REPETITION = (
    "a start of another generation, that resumes a saga, or whose event is offered again counts only if it is signed "
    "with a key of this worker; set the same worker.definition_key for client and worker"
)

MessagePurpose = Literal[
    "notification",
    "redelivery",
    "report",
    "cancel",
    "continuation",
    "state",
    "view",
    "outcome",
    "schedule",
    "callback",
    "undo",
]
"""A message of one run to another, or to a client: the input of a delivering run, the order of the next start of a
saga, the report of a nested saga to its parent, the cancel of a parent to a nested saga, the input of a continued run,
the state of a saga's machine, its view and its outcome; and of a client to runs: the order of a schedule, the callback
of a participant, and the order to undo a saga."""


class ProjectTrust(Protocol):
    """Decides which starts, decisions, messages and answers this worker believes, and signs messages for its project.

    The answers depend on the settings and files of the worker: a run asks once and records the answer. In a replay it
    asks about signatures again.
    """

    def trusts_start(
        self,
        saga: str,
        workflow_id: str,
        starts: Mapping[str, Any],
        header: bytes,
        signature: Any,
        at: float,
        earlier: Mapping[str, Any],
    ) -> bool:
        """Return whether this start is signed, its definition is one of this saga, and the inputs are valid and
        normalised. ``starts``: the input of each saga by its id; ``at``: when Temporal has recorded the start;
        ``earlier``: see :func:`sagas.protocol.signed_start.start_content`.
        """
        ...

    def is_signed_start(
        self,
        workflow_id: str,
        starts: Mapping[str, Any],
        header: bytes,
        signature: Any,
        at: float,
        earlier: Mapping[str, Any],
    ) -> bool:
        """Return whether a client of this project has signed this start, and has done it for a start at this time."""
        ...

    def trusts_detached(self, saga_id: str, value: Any, signature: Any) -> bool:
        """Return whether a bulk workflow of this project has given this saga a run of its own."""
        ...

    def trusts_decision(self, saga_id: str, run_id: str, update_id: str, decision: Mapping[str, Any]) -> bool:
        """Return whether the arguments and the definition in an operator's decision are this project's."""
        ...

    def sign_message(self, purpose: MessagePurpose, to: Sequence[str], message: Mapping[str, Any]) -> dict[str, Any]:
        """A message to another run, as JSON, with a signature if there is a key. ``to``: see
        :func:`sagas.protocol.signed_content.message_content`.
        """
        ...

    def trusts_message(self, purpose: MessagePurpose, to: Sequence[str], message: Any) -> bool:
        """Return whether this project has made this message, and for this reader."""
        ...

    def missing_key(self, signature: Any) -> str | None:
        """Return the id of the key of a signature if this worker does not have it, but another one may have it."""
        ...

    def awaited_key(self, id: str, signature: Any) -> str | None:
        """Return the id of the key of a signature if this worker does not have it, and another one may still verify
        it; None after a few minutes, and from then on in this run. ``id``: unique for what is signed, and begins with
        that of its run.
        """
        ...

    def awaits_key(self, id: str) -> bool:
        """Return whether another worker may still have a key that this one lacks; see :meth:`awaited_key`."""
        ...

    def trusts_answer(self, content: Mapping[str, Any], answer: Any) -> bool:
        """Return whether a worker of this project has given this answer of an engine's activity, a payload.
        ``content``: see :func:`sagas.protocol.signed_content.answer_content`.
        """
        ...


@dataclass(slots=True)
class RunTrust:
    """The trust of one run. ``seed``: what Temporal has drawn for it, and keeps when it resets the run, unlike its id:
    but for a reset to its very first task. ``first_seed``: the one before any reset.

    ``is_proven`` is false from the first thing on in its history that no key of this worker has signed, although a
    worker has believed it: that one may have a key that this one lacks, or be a stranger's. Nothing is signed then.
    """

    project: ProjectTrust
    seed: int
    first_seed: int
    is_proven: bool = True
    calls: int = 0
    """How many calls to activities the run has made."""

    @property
    def latest_call(self) -> str:
        """The number of the call that the run has made last, which tells calls with the same argument apart: an answer
        is signed for it, so that of an earlier probe does not answer a later one.
        """
        return f"{self.seed}.{self.calls}"


def run_trust() -> RunTrust | None:
    """The trust of the current run; None outside of a worker of a project."""
    return getattr(workflow.instance(), "trust", None)


def latest_call() -> str:
    """See :attr:`RunTrust.latest_call`. To be read when an activity has been started, before anything is awaited."""
    trust = run_trust()
    return "0" if trust is None else trust.latest_call


def signed_message(purpose: MessagePurpose, to: Sequence[str], message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with a signature for ``to``, if this worker may sign for this run."""
    trust = run_trust()
    if trust is None or not trust.is_proven:
        return dict(message)
    with workflow.unsafe.sandbox_unrestricted(), workflow.unsafe.imports_passed_through():
        return trust.project.sign_message(purpose, to, message)


class KeyMissing(RuntimeError):
    """Something is signed with a key that this worker does not have. It fails the workflow task, which Temporal
    repeats: another worker may have the key.
    """


def require_key(trust: RunTrust | None, id: str, signature: Any, what: str, *, gives_up: bool = True) -> None:
    """Raise KeyMissing while another worker may have the key of the signature of ``what``. ``id``: unique in the run.
    ``gives_up``: after a few minutes it counts as not signed.
    """
    if trust is None or workflow.unsafe.is_replaying():
        return
    with workflow.unsafe.sandbox_unrestricted(), workflow.unsafe.imports_passed_through():
        if gives_up:
            key = trust.project.awaited_key(f"{workflow.info().run_id} {id}", signature)
        else:
            key = trust.project.missing_key(signature)
    if key is not None:
        wait = "for a few minutes" if gives_up else "that has it"
        raise KeyMissing(
            f"{what} is signed with the key {key}, which this worker does not have: it is left to another worker "
            f"{wait}; give all workers the same worker.definition_key"
        )


def is_untrusted(
    trust: RunTrust | None,
    trusts: Callable[[ProjectTrust], bool],
    marker: str = UNTRUSTED,
    *,
    proof: Callable[[ProjectTrust], bool] | None = None,
) -> bool:
    """True if the worker does not trust the start of the run, or something sent to it, of which each has its
    ``marker``.

    A replay repeats that decision, whatever the keys and the files of its worker are: trust leaves no trace in the
    history, distrust a marker. This is not a patch, but the SDK can write no other marker. ``proof``: the signature
    which is also verified in the replay, for :attr:`RunTrust.is_proven`.
    """
    if not workflow.unsafe.is_replaying():
        return not is_trusted(trust, trusts) and workflow.patched(marker)
    if workflow.patched(marker):
        return True
    require_proof(trust, proof)
    return False


def require_proof(trust: RunTrust | None, proof: Callable[[ProjectTrust], bool] | None) -> None:
    """In a replay: sign nothing for this run if what its history has accepted is not proven."""
    if trust is not None and proof is not None and not is_trusted(trust, proof):
        if trust.is_proven:
            workflow.logger.warning("nothing is signed for this run: no key of this worker has signed its history")
        trust.is_proven = False


def is_trusted(trust: RunTrust | None, trusts: Callable[[ProjectTrust], bool]) -> bool:
    """Decide now, without a trace in the history. A worker without a project trusts nobody."""
    if trust is None:
        return False
    with workflow.unsafe.sandbox_unrestricted(), workflow.unsafe.imports_passed_through():
        return trusts(trust.project)


def trusts_decision(trust: ProjectTrust, decision: Mapping[str, Any]) -> bool:
    """Return whether the update that is being handled has a signature for it. After a reset, the history has updates
    that were signed for the first run.
    """
    info, update = workflow.info(), workflow.current_update_info()
    runs = {info.run_id, info.first_execution_run_id} if workflow.unsafe.is_replaying() else {info.run_id}
    update_id = "" if update is None else update.id
    return any(trust.trusts_decision(info.workflow_id, run, update_id, decision) for run in sorted(runs))


def is_proven_decision(trust: RunTrust | None, decision: Mapping[str, Any], number: int) -> bool:
    """True if the update that is being handled is signed. ``number``: that of the decision in this run."""

    def is_signed(trust: ProjectTrust) -> bool:
        return trusts_decision(trust, decision)

    return not is_untrusted(trust, is_signed, f"{UNTRUSTED} decision {number}", proof=is_signed)


def is_signed_message(
    purpose: MessagePurpose, to: Sequence[str], message: Any, *, number: int | None = None, is_proof: bool = True
) -> bool:
    """True if this project has signed the message for ``to``. ``number``: that among the messages of this purpose to
    this run; None for the one with which it has started. ``is_proof``: the effects of the run depend on the message,
    so a replay verifies it for :attr:`RunTrust.is_proven`.
    """

    def is_signed(trust: ProjectTrust) -> bool:
        return trust.trusts_message(purpose, to, message)

    marker = UNTRUSTED if number is None else f"{UNTRUSTED} {purpose} {number}"
    return not is_untrusted(run_trust(), is_signed, marker, proof=is_signed if is_proof else None)


def verifies_message(purpose: MessagePurpose, to: Sequence[str], message: Any) -> bool:
    """Verify the signature of a message for a validator, which leaves no trace in the history."""
    return is_trusted(run_trust(), lambda trust: trust.trusts_message(purpose, to, message))
