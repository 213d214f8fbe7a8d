"""Decides what a worker trusts: definitions of its own project, and what the key of the project has signed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from temporalio import workflow
from temporalio.worker import (
    ExecuteWorkflowInput,
    WorkflowInboundInterceptor,
    WorkflowOutboundInterceptor,
)

from saga_activities.input_checks import CheckedInputs, check_together
from saga_workers.input_limits import MAX_TASK_CHECK_STEPS, MAX_TASK_VALUES
from saga_workers.temporal.run_interceptor import RunInterceptor
from sagas.definition.digest import digest_of
from sagas.definition.input_validation import is_normalised, validate_input
from sagas.definition.model import Definition
from sagas.definition.snapshot import to_snapshot
from sagas.errors import RefusedError, SagaError, UsageError
from sagas.expressions.work_budget import TooComplex, bounded
from sagas.input_limits import MAX_TASK_BYTES
from sagas.machine.machine import Machine
from sagas.project import Project
from sagas.protocol.payloads import ANSWER_METADATA, RESUMED_HEADER
from sagas.protocol.signed_content import (
    answer_content,
    message_content,
    read_answer_signature,
    signed_json,
)
from sagas.protocol.signed_start import START_LIFETIME, verifies_start
from sagas.protocol.size_limits import MAX_PAYLOAD_BYTES
from sagas.protocol.unsigned_states import unpack_unsigned_state
from sagas.settings import load_settings
from sagas.settings.masking import mask
from sagas.settings.signing_keys import KEY_FILE, Purpose, is_key_id
from sagas.text.exact_json import decode_json, encode_json
from sagas.text.json_values import json_problem
from sagas.workflow.bulk_workflow import BulkWorkflow
from sagas.workflow.client_fields import MALFORMED
from sagas.workflow.notify import NotifyWorkflow
from sagas.workflow.redelivery import RedeliveryWorkflow
from sagas.workflow.run_start import drop_forged_outcome, read_header
from sagas.workflow.run_trust import UNSIGNED_REPETITION, MessagePurpose, RunTrust
from sagas.workflow.saga_workflow import SagaWorkflow
from sagas.workflow.schedule_workflow import ScheduledStart

log = logging.getLogger("saga.worker")

_READ_INTERVAL = 1.0
"""Seconds between two readings of the project's files, however many strangers start sagas."""

KEY_WAIT = 300.0
"""Seconds for which what is signed with a key that this worker lacks is left to other workers."""

_MAX_AWAITING_KEY = 10_000

_EXPIRED = f"its start signed more than {START_LIFETIME / 3600:.0f} hours before or after it"

_SENT_LATE = "it was sent once more, or the clock of the client differs from that of Temporal"


def _is_left_to_activity(starts: Mapping[str, Any], header: bytes, signature: Any) -> bool:
    """True for inputs that take too long for a workflow task, if the activity's argument can hold them."""
    size = len(encode_json(starts))
    large = size > MAX_TASK_BYTES or json_problem(starts, max_values=MAX_TASK_VALUES) is not None
    # As a string of JSON, the header has at most twice as many bytes.
    return large and size + 2 * len(header) + len(signed_json(signature)) + 1024 < MAX_PAYLOAD_BYTES


class WorkerTrust:
    """The trust of one worker, by its files and its keys.

    Definitions are compared as they travel, so nothing of a stranger's is executed first.

    A stranger may send anything: no method raises for a malformed value.

    Raises UsageError if there is no key: a worker signs what it starts for its sagas.
    """

    def __init__(self, project: Project) -> None:
        self._project = self._latest = project
        self.accepts_any = project.settings.worker.accept == "any"
        self._signatures_suffice = project.settings.worker.accept != "project"
        self._earlier_digests = frozenset(project.settings.worker.earlier_definitions)
        self.keys = project.settings.signing_keys()
        if not self.keys.keys and not self.accepts_any:
            raise UsageError(
                f"the worker has no key to sign with, and cannot make {project.settings.root / KEY_FILE}",
                help="set definition_key under [worker]: the same for all workers and clients of the project",
            )
        self._read_since: dict[str, Definition] = {}
        self._variables = signed_json(project.settings.vars)
        self._read_at = -_READ_INTERVAL
        self._unreadable = ""
        self._reading = asyncio.Lock()
        self._awaiting_key: dict[str, float] = {}
        """The time at which this worker first saw something signed with a key it lacks, by its id; oldest first."""
        self._given_up: dict[str, None] = {}
        """The runs in which a key did not arrive in time, oldest first. Nothing else in them is waited for: its key may
        also be invented."""

    def trusts_start(
        self,
        saga: str,
        workflow_id: str,
        starts: Mapping[str, Any],
        header: bytes,
        signature: Any,
        at: float,
        earlier: Mapping[str, Any] | None = None,
    ) -> bool:
        """See :class:`sagas.workflow.run_trust.ProjectTrust`. Reads no files; a workflow task must not wait."""
        if _is_left_to_activity(starts, header, signature):
            return False
        if not self.is_signed_start(workflow_id, starts, header, signature, at, earlier):
            return False
        try:
            definition = read_header(header).definition
            if not self._may_start(definition, earlier) and not self._is_known(decode_json(header)):
                return False
        except MALFORMED:
            return False
        if definition.saga != saga:
            return False
        with contextlib.suppress(TooComplex), bounded(MAX_TASK_CHECK_STEPS):
            checked = ((input, *validate_input(definition, input)) for input in starts.values())
            return all(not problems and is_normalised(input, value) for input, value, problems in checked)
        return False

    def is_signed_start(
        self,
        workflow_id: str,
        starts: Mapping[str, Any],
        header: bytes,
        signature: Any,
        at: float | None,
        earlier: Mapping[str, Any] | None = None,
    ) -> bool:
        """See :class:`sagas.workflow.run_trust.ProjectTrust`. ``at``: None for any time."""
        try:
            is_signed = verifies_start(self.keys, signature, workflow_id, header, starts, earlier, at=at)
        except MALFORMED:
            return False
        return self.accepts_any or is_signed

    def trusts_detached(self, saga_id: str, value: Any, signature: Any) -> bool:
        """See :class:`sagas.workflow.run_trust.ProjectTrust`."""
        if self._is_signed("detached", [saga_id], value, signature):
            return True
        return self.accepts_any and _is_detached(value)

    async def verify_start(
        self,
        saga: str,
        workflow_id: str,
        starts: Mapping[str, Any],
        header: str,
        signature: Any,
        at: float,
        earlier: Mapping[str, Any] | None = None,
    ) -> CheckedInputs:
        """Verify a start after reading the definitions again: they may have changed since the worker started.

        Inputs of a bulk workflow may be refused; its other sagas may start.

        Raises RefusedError or UsageError if nothing of the start is trusted.
        """
        data = header.encode()
        is_signed = self.is_signed_start(workflow_id, starts, data, signature, at, earlier)
        has_expired = not is_signed and self.is_signed_start(workflow_id, starts, data, signature, None, earlier)
        if earlier and not is_signed:
            raise RefusedError(f"{_EXPIRED}: {_SENT_LATE}" if has_expired else UNSIGNED_REPETITION)
        try:
            definition = read_header(data).definition
            if not (is_signed and self._may_start(definition, earlier)):
                await self._read_again()
                definition = definition if self._is_known(decode_json(data)) else None
        except MALFORMED:
            definition = None
        if definition is None:
            if is_signed:
                why, advice = "not an earlier one that may start", "add its digest to worker.earlier_definitions"
            elif has_expired:
                why, advice = _EXPIRED, f"start it anew: {_SENT_LATE}"
            else:
                why = "its start not signed with its key"
                advice = "set the same worker.definition_key for client and worker"
            log.warning("start of %s refused: its definition is not known, and %s", saga, why)
            raise RefusedError(
                f"the definition of {saga} is not one of this worker's project, and {why}; deploy it to the worker, or "
                f"{advice}"
            )
        if definition.saga != saga:
            raise RefusedError(f"the definition of {definition.saga} was sent for a saga {saga}")
        checked = await check_together(definition, starts)
        if checked.refused and len(checked.refused) == len(starts):
            id, problem = next(iter(checked.refused.items()))
            raise UsageError(problem if len(starts) == 1 else f"all sagas are refused, {id} because {problem}")
        return checked

    @property
    def definitions(self) -> Mapping[str, Definition]:
        """The last versions of the definitions that this worker has read without an error."""
        return {**self._project.definitions, **self._read_since, **self._latest.definitions}

    async def definition(self, saga: str) -> Definition:
        """The definition of a saga that is started by its name, read again if the files have changed.

        Raises UsageError if there is none that this worker can run. Of a file with errors, the last version without.
        """
        if await asyncio.to_thread(self._latest.has_changed):
            await self._read_again()
        try:
            return self._latest.definition(saga)
        except UsageError as error:
            if (last_valid := self.definitions.get(saga)) is not None:
                log.warning("%s; its last valid version runs", error.message)
                return last_valid
            advice = "new actions and settings are known to a worker after its restart (`saga dev restart worker`)"
            raise UsageError(f"{error.message}; {advice}") from None

    def trusts_decision(self, saga_id: str, run_id: str, update_id: str, decision: Mapping[str, Any]) -> bool:
        """See :class:`sagas.workflow.run_trust.ProjectTrust`."""
        to = [saga_id, run_id, update_id]
        return self.accepts_any or self._is_signed("decision", to, decision, decision.get("signature"))

    def sign_message(self, purpose: MessagePurpose, to: Sequence[str], message: Mapping[str, Any]) -> dict[str, Any]:
        """See :class:`sagas.workflow.run_trust.ProjectTrust`."""
        return {**message, "signature": self.keys.sign(purpose, message_content(to, message))}

    def trusts_message(self, purpose: MessagePurpose, to: Sequence[str], message: Any) -> bool:
        """See :class:`sagas.workflow.run_trust.ProjectTrust`."""
        if self.accepts_any:
            return True
        return isinstance(message, Mapping) and self._is_signed(purpose, to, message, message.get("signature"))

    def _is_signed(self, purpose: Purpose, to: Sequence[str], message: Any, signature: Any) -> bool:
        try:
            return self.keys.verifies(purpose, message_content(to, message), signature)
        except MALFORMED:
            return False

    def missing_key(self, signature: Any) -> str | None:
        """See :class:`sagas.workflow.run_trust.ProjectTrust`."""
        key = signature.get("key") if isinstance(signature, Mapping) else None
        may_exist = isinstance(key, str) and is_key_id(key) and key not in self.keys.ids
        return key if may_exist and not self.accepts_any else None

    def awaited_key(self, id: str, signature: Any) -> str | None:
        """See :class:`sagas.workflow.run_trust.ProjectTrust`."""
        key = self.missing_key(signature)
        return key if key is not None and self.awaits_key(id) else None

    def awaits_key(self, id: str) -> bool:
        """See :class:`sagas.workflow.run_trust.ProjectTrust`."""
        run = id.partition(" ")[0]
        if run in self._given_up:
            return False
        if len(self._awaiting_key) >= _MAX_AWAITING_KEY and id not in self._awaiting_key:
            del self._awaiting_key[next(iter(self._awaiting_key))]
        since = self._awaiting_key.setdefault(id, time.monotonic())
        if time.monotonic() - since < KEY_WAIT:
            return True
        if len(self._given_up) >= _MAX_AWAITING_KEY:
            del self._given_up[next(iter(self._given_up))]
        self._given_up[run] = None
        return False

    def trusts_answer(self, content: Mapping[str, Any], answer: Any) -> bool:
        """See :class:`sagas.workflow.run_trust.ProjectTrust`."""
        signature = read_answer_signature(answer.metadata.get(ANSWER_METADATA, b""))
        return self.accepts_any or self.keys.verifies("answer", answer_content(content, answer.data), signature)

    def _may_start(self, definition: Definition, earlier: Mapping[str, Any] | None) -> bool:
        """True for a definition that runs if its start is signed, also if it is not known.

        With ``accept = "project"`` these are those that the project names; a saga that `saga resume` continues is not
        new, and keeps its own.
        """
        if self._signatures_suffice or RESUMED_HEADER in (earlier or {}):
            return True
        return bool(self._earlier_digests) and digest_of(definition) in self._earlier_digests

    def _is_known(self, sent: Mapping[str, Any]) -> bool:
        """True for a definition and variables as the project's files have them now."""
        own = self._latest.definitions.get(sent["definition"]["saga"])
        if own is None or signed_json(sent["definition"]) != signed_json(to_snapshot(own)):
            return False
        return signed_json(sent.get("vars") or {}) == self._variables

    async def _read_again(self) -> None:
        """Read the files, as they are now or later; waiting starts share one reading."""
        asked_at = time.monotonic()
        async with self._reading:
            if self._read_at > asked_at:
                return
            await asyncio.sleep(self._read_at + _READ_INTERVAL - time.monotonic())
            self._read_at = time.monotonic()
            try:
                latest, variables = await asyncio.to_thread(self._read)
            except (SagaError, OSError) as error:
                if str(error) != self._unreadable:
                    why = mask(str(error))
                    log.warning("the project is not read again, starts are compared with its last state: %s", why)
                self._unreadable = str(error)
                return
            self._read_since |= self._latest.definitions
            self._latest, self._variables, self._unreadable = latest, variables, ""

    def _read(self) -> tuple[Project, bytes]:
        settings = self._project.settings
        latest = Project(settings, self._project.actions, self._project.message_handlers)
        _ = latest.definitions  # read here, in a thread
        variables = settings.vars
        if settings.config_file is not None:
            variables = load_settings(config=settings.config_file).vars
        return latest, signed_json(variables)


def _is_detached(value: Any) -> bool:
    try:
        Machine.restore(unpack_unsigned_state(value["machine"]))
        return all(isinstance(name, str) for name in value["attributes"])
    except MALFORMED:
        return False


class TrustInterceptor(RunInterceptor):
    """Worker interceptor that tells the runs what this worker trusts, and deletes what only a run itself may say."""

    def __init__(self, trust: WorkerTrust) -> None:
        super().__init__(lambda next: _TrustInbound(next, trust))


class _TrustInbound(WorkflowInboundInterceptor):
    def __init__(self, next: WorkflowInboundInterceptor, trust: WorkerTrust) -> None:
        super().__init__(next)
        self._trust = trust

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        super().init(outbound)
        # The seed of a reset to the very first task is drawn before the workflow itself can ask for one.
        self._first_seed = workflow.random_seed()

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        drop_forged_outcome()
        saga = workflow.instance()
        if isinstance(saga, SagaWorkflow | BulkWorkflow | NotifyWorkflow | ScheduledStart | RedeliveryWorkflow):
            saga.trust = RunTrust(self._trust, workflow.random_seed(), self._first_seed)
        return await super().execute_workflow(input)
