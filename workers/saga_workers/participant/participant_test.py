"""Runs the checks against a real participant: as `http` or as `kafka.request`, exactly as a worker calls it."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import quote

import httpx

from saga_activities.attempt_context import AttemptContext
from saga_activities.bodies.action_bodies import ActionBodies
from saga_activities.connections import DatabaseConnections
from saga_activities.dispatcher import Dispatcher
from saga_activities.http import HttpConnections, http_settings, run_http
from saga_workers.participant.checks import CHECKS, PromiseResult, run_check, with_proposals
from saga_workers.participant.kafka_commands import KafkaCommands
from saga_workers.participant.trial import FirstRequestFailed, NotTestable, Trial
from sagas.actions.registry import Actions
from sagas.builtins.callbacks import CALLBACK
from sagas.builtins.http_headers import KEY_FORMATS, KeyFormat
from sagas.builtins.messaging import REQUEST
from sagas.builtins.registry import READ_METHODS
from sagas.definition.loader import parse_text
from sagas.definition.model import Definition, StepDefinition, is_read
from sagas.definition.parser.draft import ProjectContext
from sagas.errors import SagaError, UsageError, did_you_mean
from sagas.project import connection_facts
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation
from sagas.settings import Settings
from sagas.simulation import Environment, StepCalls
from sagas.text.exact_json import encode_json

STEP = "participant"
"""The id of the only step of a definition that `--do` describes; expressions of the undo name it."""

DEFAULT_TIMEOUT = 30.0
"""Seconds for each response."""

SEND_AT = "http11.send_request_headers.started"
"""The event of a connection at which nothing of a request has been sent."""

CUT_AT = "http11.receive_response_headers.started"
"""The event of a connection at which all of the request has been sent, and nothing of the response was read."""

CONNECT_SECONDS = 5.0
"""Seconds that copies of a request wait for each other's connection."""

log = logging.getLogger("saga.participant")


@dataclass(frozen=True, slots=True)
class StepUnderTest:
    """The step whose participant is tested.

    ``results`` are those of the other steps. ``other`` is the same step with other arguments; None: one is changed.
    ``rejected`` is the same step with arguments that the participant rejects; without it, none are known.
    ``count`` are the arguments of an `http` read whose result is the number of effects; ``{key}`` in its URL is the
    forward key.
    """

    definition: Definition
    step: str
    input: Any = None
    results: Mapping[str, Any] = field(default_factory=dict)
    other: StepUnderTest | None = None
    rejected: StepUnderTest | None = None
    count: Mapping[str, Any] | None = None
    environment: Environment = field(default_factory=Environment)
    input_is_sample: bool = False

    def calls(self, saga_id: str) -> StepCalls:
        return StepCalls(
            self.definition, self.step, self.input, saga_id, self.results, self.environment, self.input_is_sample
        )


def http_step(
    settings: Settings,
    do: str,
    undo: str | None,
    confirm: str | None,
    connection: str | None,
    bodies: Mapping[str, Any],
    count: Mapping[str, Any] | None,
) -> StepUnderTest:
    """The step that requests such as ``POST https://example.com/reserve`` describe.

    ``bodies`` are JSON values by ``data``, ``undo-data`` and ``confirm-data``; the last two default to the first.
    Raises UsageError if one of them is not a request.
    """

    def operation(request: str, name: str) -> dict[str, Any]:
        method, _, url = request.strip().partition(" ")
        url = url.strip()
        if not url or not method.isalpha():
            raise UsageError(
                f"{request!r} must be METHOD URL", help="for example --do 'POST https://example.com/reserve'"
            )
        with_: dict[str, Any] = {"method": method.upper(), "path" if url.startswith("/") else "url": url}
        if connection is not None:
            with_["connection"] = connection
        body = bodies.get(name, bodies.get("data", _NO_BODY))
        return {"uses": "http", "with": with_ if body is _NO_BODY else {**with_, "json": body}}

    if confirm is not None and undo is None:
        raise UsageError("--confirm needs --undo: a step that is confirmed can be undone until then")
    step = operation(do, "data")
    if undo is not None:
        step["compensate"] = operation(undo, "undo-data")
    if confirm is not None:
        step["confirm"] = operation(confirm, "confirm-data")
    return _described(settings, step, count)


def kafka_step(
    settings: Settings,
    topic: str,
    reply_topic: str | None,
    bodies: Mapping[str, Any],
    count: Mapping[str, Any] | None,
) -> StepUnderTest:
    """The step that sends commands to ``topic``; ``bodies`` as for :func:`http_step`. Confirmed only with a body."""

    def operation(name: str) -> dict[str, Any]:
        with_ = {"topic": topic, "value": bodies.get(name, bodies.get("data"))}
        return {"uses": REQUEST, "with": with_ if reply_topic is None else {**with_, "reply_topic": reply_topic}}

    step = {**operation("data"), "compensate": operation("undo-data")}
    if "confirm-data" in bodies:
        step["confirm"] = operation("confirm-data")
    return _described(settings, step, count)


_NO_BODY = object()


def _described(settings: Settings, step: Mapping[str, Any], count: Mapping[str, Any] | None) -> StepUnderTest:
    pivot = {} if "compensate" in step else {"pivot": True}
    text = encode_json({"saga": "participant-test", "steps": [{"id": STEP, **step, **pivot}]}).decode()
    context = ProjectContext(connections=connection_facts(settings))
    definition, diagnostics = parse_text(text, "participant test", context)
    if definition is None:
        first = next(diagnostic for diagnostic in diagnostics if diagnostic.severity == "error")
        raise UsageError(f"this is not a request that a saga could make: {first.message}", help=first.help)
    return StepUnderTest(definition, STEP, {}, count=count)


async def run_participant_test(
    settings: Settings, tested: StepUnderTest, *, timeout: float = DEFAULT_TIMEOUT
) -> list[PromiseResult]:
    """All checks, one after the other. ``timeout`` is in seconds, for each response.

    Raises UsageError if the step cannot be tested, SagaError if the participant does not do a first request.
    """
    step = _step(tested)
    operations = frozenset(
        name
        for name, action in zip(("undo", "confirm"), _actions(step)[1:], strict=True)
        if action in ("http", REQUEST)
    )
    try:
        return await _run_checks(settings, tested, step, operations, timeout)
    except FirstRequestFailed as error:
        format = await _format_that_is_accepted(settings, tested, step, timeout) if step.do.uses == "http" else None
        if format is None:
            raise
        raise SagaError(
            f"{error.message}; it does the request with a key of the format {format}",
            help=f'idempotency = {{header = "Idempotency-Key", format = "{format}"}} on its connection in saga.toml',
        ) from None


async def _format_that_is_accepted(
    settings: Settings, tested: StepUnderTest, step: StepDefinition, timeout: float
) -> str | None:
    """Another format of keys with which the participant does the first request; None: no format helps."""
    if (step.do.with_ or {}).get("connection") is None:
        return None
    for format in KEY_FORMATS[1:]:
        transport = _ParticipantTransport(settings, timeout, None, format)
        trial = Trial(tested.calls(f"participant-test-{uuid.uuid4().hex[:12]}"), transport)
        try:
            await trial.first()
        except FirstRequestFailed:
            continue
        finally:
            await trial.clean_up()
            await transport.close()
        return format
    return None


async def _run_checks(
    settings: Settings, tested: StepUnderTest, step: StepDefinition, operations: frozenset[str], timeout: float
) -> list[PromiseResult]:
    async with AsyncExitStack() as stack:
        commands = await KafkaCommands(settings.kafka, timeout).open() if REQUEST in _actions(step) else None
        transport = _ParticipantTransport(settings, timeout, commands)
        stack.push_async_callback(transport.close)
        count = None if tested.count is None else partial(transport.count_effects, tested.count)
        results: list[PromiseResult] = []
        for check in CHECKS:
            saga_id = f"participant-test-{uuid.uuid4().hex[:12]}"
            other = None if tested.other is None else tested.other.calls(saga_id)
            rejected = None if tested.rejected is None else tested.rejected.calls(saga_id)
            trial = Trial(tested.calls(saga_id), transport, other, rejected, count)
            results.append(await run_check(check, trial, operations))
        return with_proposals(results, definite=step.do.uses == REQUEST)


def _step(tested: StepUnderTest) -> StepDefinition:
    name, definition = tested.step, tested.definition
    step = next((step for step in definition.steps if step.id == name), None)
    if step is None:
        near = did_you_mean(name, tuple(step.id for step in definition.steps))
        raise UsageError(f"{definition.saga} has no step {name}{near}")
    if step.do.uses not in ("http", REQUEST):
        raise UsageError(
            f"the step {name} uses {step.do.uses}, which the engine performs itself; only http and {REQUEST} have "
            f"a participant to test"
        )
    if CALLBACK in (step.do.with_ or {}):
        raise UsageError(
            f"the participant of {name} answers by a callback, which this test does not receive",
            help="test a copy of the step without `callback`, against a service that answers at once",
        )
    method = str((step.do.with_ or {}).get("method", "GET")).upper()
    if is_read(step) or (step.do.uses == "http" and method in READ_METHODS):
        raise UsageError(f"the step {name} only reads, so there is nothing to test")
    return step


def _actions(step: StepDefinition) -> tuple[str, str | None, str | None]:
    """Return what performs the step, its undo and its confirm; None if there is none."""
    undo = step.compensate.alternates[0].uses if step.compensate else None
    return step.do.uses, undo, step.confirm.uses if step.confirm else None


class _ParticipantTransport:
    """Sends HTTP requests with the engine's own dispatcher, and commands as a relay publishes them."""

    def __init__(
        self,
        settings: Settings,
        timeout: float,
        commands: KafkaCommands | None,
        key_format: KeyFormat | None = None,
    ) -> None:
        """``key_format``: the format of all keys; None: that of each connection."""
        self._timeout = timeout
        self._commands = commands
        self._control = _ConnectionControl()
        services = {service.name: http_settings(service) for service in settings.http_services()}
        if key_format is not None:
            services = {name: replace(service, key_format=key_format) for name, service in services.items()}
        self._connections = HttpConnections(services, self._control)
        self._dispatcher = Dispatcher(ActionBodies(Actions()), DatabaseConnections(), self._connections)

    async def close(self) -> None:
        await self._connections.aclose()
        if self._commands is not None:
            await self._commands.close()

    async def deliver(self, invocation: Invocation, copies: int = 1) -> list[Outcome]:
        if invocation.action == REQUEST:
            assert self._commands is not None
            return await self._commands.deliver(invocation, copies)
        if self._connections.get(invocation.arguments.get("connection")).settings.key_header is None:
            raise UsageError(
                "the connection sends no idempotency key, so the participant promises nothing",
                help='remove idempotency = "none" from the connection in saga.toml',
            )
        self._control.barrier = asyncio.Barrier(copies) if copies > 1 else None
        return await asyncio.gather(*(self._perform(invocation) for _ in range(copies)))

    async def cut_off(self, invocation: Invocation) -> None:
        if invocation.action == REQUEST:
            raise NotTestable("a command has no connection; a lost reply is a command that is delivered again")
        self._control.barrier, self._control.cuts = None, True
        try:
            outcome = await self._perform(invocation)
        finally:
            self._control.cuts = False
        if outcome.kind == "done":
            raise NotTestable("the request goes to another host than its connection, which is not cut off")

    async def count_effects(self, arguments: Mapping[str, Any], key: str) -> int:
        """The number that an `http` read returns; ``{key}`` in its URL is replaced. Raises SagaError without one."""
        url = str(arguments["url"]).replace("{key}", quote(key, safe=""))
        outcome = await run_http(
            {**arguments, "url": url}, key=key, connection=self._connections.get(None), timeout=self._timeout
        )
        result = outcome.result
        if outcome.kind == "done" and isinstance(result, int) and not isinstance(result, bool):
            return result
        problem = outcome.failure.message if outcome.failure else f"it is {encode_json(result).decode()[:100]}"
        raise SagaError(
            f"the number of effects cannot be read: {problem}",
            help="--count takes a URL whose response is a number, or with --count-result an expression over it",
        )

    async def _perform(self, invocation: Invocation) -> Outcome:
        now = time.time()
        return await self._dispatcher.perform(
            invocation, AttemptContext(1, now, now + self._timeout, lambda _: None, log)
        )


@dataclass(slots=True)
class _ConnectionControl:
    """Acts at the events of connections. ``cuts``: closes them before the response is read.

    ``barrier``: each copy of a request waits until all of them are connected, so that they arrive at the same time.
    """

    cuts: bool = False
    barrier: asyncio.Barrier | None = None

    async def __call__(self, event: str, _: Mapping[str, Any]) -> None:
        if event == SEND_AT and self.barrier is not None and not self.barrier.broken:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await self.barrier.wait()
            except (TimeoutError, asyncio.BrokenBarrierError):
                await self.barrier.abort()  # one of them could not connect
        if event == CUT_AT and self.cuts:
            raise httpx.ReadError("the test has closed the connection")
