"""Finds out whether a worker serves a saga: first from the pollers that the server has seen, then by querying the saga.

The server lists a worker for minutes after it was killed, and keeps listing one that is frozen. So only a response is
proof: an unanswered query means that no worker is there, whatever the list of pollers says.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from temporalio.api.failure.v1 import Failure
from temporalio.client import Client as Temporal
from temporalio.client import WorkflowQueryFailedError, WorkflowQueryRejectedError
from temporalio.service import RPCError, RPCStatusCode

from saga_workers.location.verified_outcomes import can_verify
from saga_workers.temporal.foreign_payloads import UNREADABLE_PAYLOAD
from saga_workers.temporal.malformed_results import is_malformed_result, malformed_result_text
from saga_workers.temporal.run_history import last_task_failure
from saga_workers.temporal.server_time import ServerTime
from saga_workers.temporal.temporal_runs import (
    RunDescription,
    is_recent_poll,
    last_poll,
    no_poller_message,
    nobody_answers,
)
from saga_workers.temporal.worker_deployments import version_to_make_current, with_set_current_command
from sagas.protocol.doubtful_outcomes import UNVERIFIED_ANSWER
from sagas.protocol.payloads import VIEW_QUERY
from sagas.protocol.saga_view import FINAL_STATES, SagaView
from sagas.protocol.signed_content import message_content, view_message
from sagas.settings.signing_keys import SigningKeys
from sagas.text.exact_json import decode_json
from sagas.text.json_values import parse_json
from sagas.text.printable import printable_line
from sagas.workflow.json_payloads import question
from sagas.workflow.run_trust import KeyMissing

DUE = 10.0
"""Seconds a task may wait for a worker that is alive but busy."""

_UNANSWERED = (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED)
_NO_POLLER = "no poller seen"  # the server's message some time after the last poll; its status code has many meanings
NO_VIEW = "the answer of its worker is not a view of a saga"
WORKFLOW_TASK = "its workflow task"
_ANSWER: Any = dict[str, Any] | None


class Unqueryable(Exception):
    """The saga cannot be queried; the message says why."""


@dataclass(frozen=True, slots=True)
class ViewAnswer:
    """The answer to the query for a view. ``document``: the view as JSON, or whatever a stranger has answered; null if
    a bulk workflow does not know the saga yet.
    """

    document: Any
    is_believed: bool = True

    def marked(self, view: SagaView) -> SagaView:
        """The view that the document has; if it is not believed, marked, and without an end, which only a closed run
        has.
        """
        if self.is_believed:
            return view
        state = "RUNNING" if view.state in FINAL_STATES else view.state
        return replace(view, state=state, output=None, ended_at=None, can_undo=False, incomplete=UNVERIFIED_ANSWER)


class Workers:
    """The task queues that are served, as far as one command has found out. ``keys`` verify the answers of runs.

    A queue is silent if a saga of it does not answer and none has answered before; its other sagas are then not queried
    any more, so that a list of hundreds waits only once.
    """

    def __init__(self, temporal: Temporal, keys: SigningKeys | None) -> None:
        self.temporal = temporal
        self._keys = keys
        self.server_time = ServerTime(temporal)
        self._polls: dict[tuple[str, bool], float] = {}
        self._answered: set[str] = set()
        self._silent: set[str] = set()
        self._unanswered: set[str] = set()
        self._reasons: dict[str, str] = {}

    async def polled(self, queue: str, *, workflows: bool = True, since: float | None = None) -> bool:
        """Return whether a worker has polled the queue since ``since`` (seconds since the epoch; default: recently)."""
        key = (queue, workflows)
        if key not in self._polls:
            self._polls[key] = await last_poll(self.temporal, queue, workflows=workflows)
        if since is not None:
            return self._polls[key] >= since
        return await is_recent_poll(self.server_time, self._polls[key])

    async def unanswered(self, described: RunDescription) -> bool:
        """Return whether no worker answers for this run, as far as `query` has found out."""
        run = described.run
        return run.task_queue in self._silent or (
            run.run_id in self._unanswered
            and waits_for_task(described.raw.pending_workflow_task, await self.server_time.likely()) > DUE
        )

    async def why_silent(self, queue: str) -> str:
        """The reason why no worker of a polled queue answers: Temporal may pass nothing on to their version."""
        if queue not in self._reasons:
            version = await version_to_make_current(self.temporal, queue)
            self._reasons[queue] = nobody_answers(queue) if version is None else with_set_current_command(version)
        return self._reasons[queue]

    async def query(self, described: RunDescription, name: str, timeout: timedelta, *arguments: Any) -> Any:
        """The response of the run, a JSON object or null. Raises Unqueryable."""
        run = described.run
        begins = run.begins_at
        if begins > run.start_time and begins.timestamp() > await self.server_time.likely():
            raise Unqueryable(f"it was started with a delay, and begins at {begins:%Y-%m-%d %H:%M:%S} UTC")
        if not await self.polled(run.task_queue):
            raise Unqueryable(no_poller_message(run.task_queue))
        if run.task_queue in self._silent:
            raise Unqueryable(await self.why_silent(run.task_queue))
        handle = self.temporal.get_workflow_handle(run.id, run_id=run.run_id)
        try:
            # The timeout of an RPC does not bound all of its attempts: concurrent queries of a run whose workflow task
            # waits for a worker end one after the other, each after as long.
            async with asyncio.timeout(timeout.total_seconds()):
                questions = [question(argument) for argument in arguments]
                answer = await handle.query(name, args=questions, result_type=_ANSWER, rpc_timeout=timeout)
        except (TimeoutError, RPCError, WorkflowQueryFailedError, WorkflowQueryRejectedError) as error:
            raise await self._why(described, error, timeout) from None
        except UNREADABLE_PAYLOAD as error:
            raise Unqueryable(f"the answer of its worker cannot be read ({error})") from None
        self._answered.add(run.task_queue)
        self._silent.discard(run.task_queue)
        return answer

    async def query_view(self, described: RunDescription, timeout: timedelta, member: str | None = None) -> ViewAnswer:
        """The answer to the query for the view. ``member``: the saga, if this is a bulk workflow. Raises Unqueryable.

        Any client can have a worker of its own answer, for a run of its own or of the project: so an answer of a worker
        of the project is signed for this question. Without keys any answer is believed.
        """
        arguments = [] if member is None else [member]
        keys = self._keys
        if keys is None or not can_verify(keys):
            return ViewAnswer(await self.query(described, VIEW_QUERY, timeout, *arguments))
        nonce = secrets.token_hex(16)
        answer = await self.query(described, VIEW_QUERY, timeout, *arguments, nonce)
        text = answer.get("view") if isinstance(answer, dict) else None
        if not isinstance(text, str):
            return ViewAnswer(answer, is_believed=answer is None)
        content = message_content(
            [member or described.run.id, described.run.run_id, nonce],
            view_message(text.encode("utf-8", "surrogatepass")),
        )
        if keys.verifies("view", content, answer.get("signature")):
            return ViewAnswer(decode_json(text))
        with suppress(ValueError, RecursionError):
            return ViewAnswer(parse_json(text), is_believed=False)
        return ViewAnswer({}, is_believed=False)

    async def _why(self, described: RunDescription, error: Exception, timeout: timedelta) -> Unqueryable:
        run, task = described.run, described.raw.pending_workflow_task
        unanswered = isinstance(error, TimeoutError) or (
            isinstance(error, RPCError) and (error.status in _UNANSWERED or _NO_POLLER in error.message)
        )
        failure = await last_task_failure(self.temporal, run) if task.attempt > 1 else None
        if is_malformed_result(failure):
            return Unqueryable(malformed_result_text(run.id))
        if task.attempt > 1:
            # The poller that was seen may be that of the worker in which it fails, and answers no query then.
            if failure is not None and (failure.message or not unanswered):
                return Unqueryable(failing_task_reason(task.attempt, failure))
            unanswered = True  # the server passes no query on while it retries a task
        if not unanswered:
            text = " ".join(str(getattr(error, "message", error)).split())
            return Unqueryable(f"the query failed in its worker ({text})")
        self._unanswered.add(run.run_id)
        if run.task_queue in self._answered:
            return Unqueryable(
                f"it did not answer within {timeout.total_seconds():g} s, although other sagas of its task queue did"
            )
        self._silent.add(run.task_queue)
        return Unqueryable(await self.why_silent(run.task_queue))


def failing_task_reason(attempt: int, failure: Failure | None) -> str:
    """The reason of a run whose workflow task is repeated; ``failure`` as of :func:`last_task_failure`."""
    why = "see the worker's log or the Web UI"
    if failure is not None and failure.application_failure_info.type == KeyMissing.__name__:
        why = printable_line(failure.message)
    fails = "times out" if failure is None else "fails"
    return f"{WORKFLOW_TASK} {fails} (attempt {attempt}): {why}"


def waits_for_task(task: Any, now: float) -> float:
    """Seconds since the workflow task was started or scheduled; 0.0 if there is none. ``now``: the server's time."""
    since = task.started_time if task.HasField("started_time") else task.scheduled_time
    return now - since.ToMicroseconds() / 1e6 if since.seconds else 0.0
