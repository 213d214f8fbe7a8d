"""`kafka.request`: write the command once, then wait for its reply without occupying a worker.

The table `saga_request` and the format of replies are also here.

=============================  ====================================================================================
state of the row               what the attempt does
=============================  ====================================================================================
new                            writes the command and registers itself as the waiter, in one transaction
no reply yet                   registers itself as the waiter; the command is already in the outbox
a reply                        returns it as the outcome
a command whose undo was sent  late: a run of the saga that was deleted has undone it, or is undoing it
that of another saga           parks, whatever its reply is; an undo or a confirm of that command does nothing, or parks
sealed                         late: the saga rolled back before the command was written, and it never will be
a refused undo or confirm,     an operator has chosen to retry, or a new run undoes the saga: clears the refusal and
in a new call                  writes the command again
=============================  ====================================================================================
"""

from __future__ import annotations

import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.attempt_context import AttemptContext, ReplyPending
from saga_activities.connections import DatabaseConnections
from saga_activities.database_clock import DatabaseNow
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.rules import done_by_another, nothing_to_undo
from saga_activities.guard.sql_session import SqlSession
from saga_activities.guard.stored_values import StoredValues, stored_values
from saga_activities.guard.tables import guard_table, request_table
from saga_activities.input_limits import MAX_RESPONSE_BYTES
from saga_activities.kafka.record_codec import (
    CONFIRMS_HEADER,
    OUTCOME_HEADER,
    REPLY_TO_HEADER,
    REPLY_TOKEN_HEADER,
    STEP_KEY_HEADER,
    TRACEPARENT_HEADER,
    UNDOES_HEADER,
)
from saga_activities.messaging.outbox import insert_events, key_text
from saga_activities.value_places import request_place
from sagas.actions.events import Event
from sagas.actions.message_headers import UnreadableHeader
from sagas.builtins.messaging import REPLY_PROBE, REQUEST, default_reply_topic, is_reserved
from sagas.errors import Unequipped, UsageError
from sagas.input_limits import MAX_RESULT_VALUES
from sagas.protocol.origin import is_of_another_saga
from sagas.protocol.outcomes import Failure, Outcome
from sagas.protocol.payloads import Invocation
from sagas.protocol.size_limits import limit_size, omitted
from sagas.settings.kafka import KafkaSettings
from sagas.text.exact_json import decode_json, encode_json
from sagas.text.json_values import has_more_values, parse_json

COMMAND_TYPE = "saga.command"
"""The CloudEvents type of a command."""

REQUEST_ACTIONS = (REQUEST, REPLY_PROBE)

_REPLY_PENDING = object()


class KafkaRequestAction:
    """Performs `kafka.request` and its probe with the tables of ``[kafka] outbox``."""

    def __init__(self, databases: DatabaseConnections, kafka: KafkaSettings) -> None:
        self._databases = databases
        self._kafka = kafka

    async def perform(self, invocation: Invocation, attempt: AttemptContext) -> Outcome:
        """The outcome, if the reply has arrived.

        Raises :class:`ReplyPending` if it has not, and UsageError for arguments that are not a command.
        """
        if invocation.action == REPLY_PROBE:
            return await self._probe(invocation, attempt)
        if not attempt.task_token:
            raise UsageError(f"{REQUEST} needs Temporal, which resumes the saga when the reply arrives")
        reply_topic = invocation.arguments.get("reply_topic") or default_reply_topic(self._kafka.prefix)
        command = build_command(invocation, reply_topic, attempt.traceparent)
        waiter = WaitingAttempt(
            attempt.task_token, attempt.number, invocation.earlier_attempts, attempt.run_id, invocation.sensitive_texts
        )

        async def request(sql: SqlSession) -> Any:
            forward_key = invocation.forward_key if invocation.op != "do" else None
            row = await lock_request(sql, _row_values(invocation, attempt, reply_topic), forward_key=forward_key)
            if invocation.op == "do" and not row.is_new and await _is_undone(sql, invocation):
                return _UNDONE
            if (of_another := _outcome_of_another(row, invocation)) is not None:
                if row.is_new:  # else it would tell the other saga that its command is undone
                    await sql.execute(sa.delete(request_table).where(request_table.c.step_key == invocation.key))
                return of_another
            is_repeated = invocation.op != "do" and row.is_refused and _is_new_call(row, waiter)
            if row.outcome is not None and not is_repeated:
                return _recorded_outcome(row, attempt)
            if is_repeated:  # a late copy of the first reply must not answer the second command
                row = replace(row, reply_topic=reply_topic, reply_token=new_token())
            if row.is_new or is_repeated:
                assert row.reply_token is not None
                resent_by = attempt.run_id if is_repeated else None
                event = replace(with_token(command, row.reply_token), id=command_id(invocation, resent_by=resent_by))
                await insert_events(sql, [event], invocation, self._kafka.max_message_bytes)
            await register_waiter(sql, invocation.key, replace(row, waiter=waiter))
            return _REPLY_PENDING

        outcome = await self._transaction(invocation, attempt, request)
        if outcome.kind != "done":
            return outcome
        if outcome.result is _REPLY_PENDING:
            raise ReplyPending(invocation.key)
        return outcome.result

    async def _probe(self, invocation: Invocation, attempt: AttemptContext) -> Outcome:
        """The probe: returns the state of the row, and seals the command if there is none."""

        async def look_up(sql: SqlSession) -> Any:
            row = await lock_request(sql, {**_row_values(invocation, attempt), "op": "do", "outcome": SEALED})
            if is_of_another_saga(row.origin, invocation.origin):  # as good as a seal: it is never sent under this key
                return Outcome.done({"probe": "absent"}, attempt=attempt.number, marker="absent")
            if row.outcome is None:
                message = "the command was sent, and no reply to it has arrived yet"
                return Outcome.done({"probe": "unknown", "message": message}, attempt=attempt.number)
            if row.outcome == DONE:
                result = outcome_of_reply(DONE, row.data or "null", attempt.number).result
                return Outcome.done({"probe": "done", "result": result}, attempt=attempt.number)
            return Outcome.done({"probe": "absent"}, attempt=attempt.number, marker="absent")

        outcome = await self._transaction(invocation, attempt, look_up)
        return outcome.result if outcome.kind == "done" else replace(outcome, kind="unknown")

    async def _transaction(self, invocation: Invocation, attempt: AttemptContext, body: Any) -> Outcome:
        if self._kafka.outbox is None:
            raise Unequipped(f'{REQUEST} needs a database for its commands: [kafka] outbox = "…" in saga.toml')
        guard = self._databases.guard(self._kafka.outbox)
        address = EntryKey(invocation.saga_id, invocation.entry, invocation.generation)
        return await guard.run_probe(address, body, scheduled_at=attempt.scheduled_at, deadline=attempt.deadline)


async def _is_undone(sql: SqlSession, command: Invocation) -> bool:
    """True if there is an undo of the command that the participant has not refused, or an action has undone it here."""
    columns, key = request_table.c, command.key
    keys = [f"{key}/undo", *(f"{key}/undo.{number}" for number in range(1, _MOST_ALTERNATES))]
    accepted = sa.or_(columns.outcome.is_(None), columns.outcome == DONE)
    if await sql.all(sa.select(columns.step_key).where(columns.step_key.in_(keys), accepted)):
        return True
    guarded, at = guard_table.c, command
    is_entry = (guarded.saga_id == at.saga_id, guarded.step == at.entry, guarded.generation == at.generation)
    return bool(await sql.all(sa.select(guarded.op).where(*is_entry, guarded.op == "own_undo")))


def _outcome_of_another(row: RequestRow, invocation: Invocation) -> Outcome | None:
    """The outcome if the row, or the command that is to be undone or confirmed, is that of another saga, else None."""
    if is_of_another_saga(row.forward_origin, invocation.origin):
        return nothing_to_undo() if invocation.op == "undo" else done_by_another("confirm")
    if row.outcome == SEALED or not is_of_another_saga(row.origin, invocation.origin):
        return None
    return done_by_another(invocation.op)  # pyright: ignore[reportArgumentType]


def _recorded_outcome(row: RequestRow, attempt: AttemptContext) -> Outcome:
    if row.outcome == SEALED:
        failure = Failure("AlreadyCompensated", "the saga was rolled back before this command was written")
        return Outcome("late", failure=failure, retryable=False)
    return outcome_of_reply(row.outcome or DONE, row.data or "null", attempt.number)


def _is_new_call(row: RequestRow, attempt: WaitingAttempt) -> bool:
    """True if an earlier call, or an earlier run, has received the refusal; an attempt of the same call may have missed
    it.
    """
    before = row.waiter
    if before is None:
        return False
    return attempt.run_id != before.run_id or attempt.earlier_attempts > before.earlier_attempts


def _row_values(invocation: Invocation, attempt: AttemptContext, reply_topic: str | None = None) -> dict[str, Any]:
    """The columns of a new row. One with a ``reply_topic`` gets a token, which all attempts then read from the row."""
    return {
        "step_key": invocation.key,
        "saga_id": invocation.saga_id,
        "step": invocation.entry,
        "generation": invocation.generation,
        "op": invocation.op,
        "created_at": attempt.scheduled_at,
        "reply_topic": reply_topic,
        "reply_token": None if reply_topic is None else new_token(),
        "origin": invocation.origin,
    }


def command_id(invocation: Invocation, *, resent_by: str | None = None) -> str:
    """The event id of a command, the same in every attempt: the outbox's unique id prevents a second command.

    ``resent_by``: the run that sends a refused undo or confirm once more, under another id.
    """
    key = invocation.key
    name = key if resent_by is None else f"{key}#{resent_by}#{invocation.earlier_attempts}"
    return str(uuid5(NAMESPACE_URL, f"saga:{name}"))


def build_command(invocation: Invocation, reply_topic: Any, traceparent: str | None = None) -> Event:
    """The message a participant receives, without its token. Raises UsageError for arguments that are not a command."""
    given = invocation.arguments
    unknown = [name for name in given if name not in ("topic", "reply_topic", "key", "value", "headers")]
    if unknown:
        raise UsageError(f"{REQUEST} has no argument {unknown[0]!r}")
    topic = given.get("topic")
    if not isinstance(topic, str) or not topic or not isinstance(reply_topic, str):
        raise UsageError(f"{REQUEST} needs `topic`, a string; `reply_topic` is a string too")
    headers = given.get("headers") or {}
    if not isinstance(headers, Mapping):
        raise UsageError(f"`headers` of {REQUEST} must be a mapping")
    for name in headers:
        if is_reserved(name):
            raise UsageError(f"the header {name!r} of {REQUEST} is reserved for the engine: choose another name")
    ours = {STEP_KEY_HEADER: invocation.key, "sagaop": invocation.op, REPLY_TO_HEADER: reply_topic}
    if traceparent is not None:
        ours[TRACEPARENT_HEADER] = traceparent
    if (names_forward := {"undo": UNDOES_HEADER, "confirm": CONFIRMS_HEADER}.get(invocation.op)) is not None:
        ours[names_forward] = invocation.forward_key
    key = given.get("key")
    # By default, do and undo of one saga stay in order.
    written = invocation.saga_id if key is None else key_text(key)
    return Event(topic, written, given.get("value"), {**headers, **ours}, type=COMMAND_TYPE)


def with_token(command: Event, token: str) -> Event:
    """The command with the token that its reply returns."""
    return replace(command, headers={**command.headers, REPLY_TOKEN_HEADER: token})


def new_token() -> str:
    """The token of a new command."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


# `saga_request`: one row for each command, with the waiter and later the reply.
#
# The row synchronizes both sides. An attempt locks it, reads the reply and registers itself in one transaction; a reply
# is written by one statement on the same row. So either the attempt finds the reply, or the writer of the reply finds
# the waiter.
SEALED = "sealed"
"""The outcome of a command that was never written and never will be."""

_TOKEN_BYTES = 24
_MOST_ALTERNATES = 10
"""Alternates of one compensation, of which each has a key of its own."""

_LATE = Failure("AlreadyCompensated", "the command was undone before this attempt")
_UNDONE = Outcome("late", failure=_LATE, retryable=False)


@dataclass(frozen=True, slots=True)
class WaitingAttempt:
    """The attempt of a request that waits for its reply.

    ``token`` is Temporal's task token; ``attempt`` counts from 1 within its call, ``earlier_attempts`` is the number of
    attempts before that call, ``run_id`` the run that has made it. ``sensitive_texts``: texts that no message may
    quote.
    """

    token: bytes
    attempt: int
    earlier_attempts: int = 0
    run_id: str = ""
    sensitive_texts: tuple[str, ...] = ()

    def to_text(self) -> str:
        waiter = {
            "token": b64encode(self.token).decode(),
            "attempt": self.attempt,
            "earlier": self.earlier_attempts,
            "run": self.run_id,
            "sensitive_texts": self.sensitive_texts,
        }
        return encode_json(waiter).decode()

    @staticmethod
    def from_text(text: str) -> WaitingAttempt:
        data = decode_json(text)
        return WaitingAttempt(
            b64decode(data["token"]), data["attempt"], data["earlier"], data["run"], tuple(data["sensitive_texts"])
        )


@dataclass(frozen=True, slots=True)
class RequestRow:
    """A row as read. ``forward_origin``: that of the command that this one undoes or confirms, if it was asked for."""

    outcome: str | None  # None before the reply
    data: str | None
    waiter: WaitingAttempt | None
    reply_topic: str | None = None  # what a reply must have
    reply_token: str | None = field(default=None, repr=False)
    origin: str | None = None
    forward_origin: str | None = None

    @property
    def is_new(self) -> bool:
        """True if this transaction has inserted the row: an earlier one would also have registered its waiter."""
        return self.outcome is None and self.waiter is None

    @property
    def is_refused(self) -> bool:
        return self.outcome in (REJECTED, FAILED)


async def lock_request(sql: SqlSession, row: dict[str, Any], *, forward_key: str | None = None) -> RequestRow:
    """The row of ``row["step_key"]``, inserted if missing, and locked; with the origin of that of ``forward_key``."""
    values = {"outcome": None, "origin": None, **row}
    values["origin"] = sql.stored_values.encrypt_origin(request_place(row["step_key"], "origin"), values["origin"])
    await sql.execute(_insert_statement(sql.dialect), values)
    query = _select_row(row["step_key"], forward_key).with_for_update(of=request_table)
    return _to_request_row(await sql.one(query), sql.stored_values)


async def register_waiter(sql: SqlSession, key: str, row: RequestRow) -> None:
    """Register the attempt that receives the reply, and what the reply must have; clear an earlier reply."""
    assert row.waiter is not None
    values = {
        "outcome": None,
        "data": None,
        "answered_at": None,
        "token": sql.stored_values.encrypt_json(request_place(key, "token"), row.waiter.to_text()),
        "reply_topic": row.reply_topic,
        "reply_token": row.reply_token,
    }
    await sql.execute(sa.update(request_table).where(request_table.c.step_key == key).values(**values))


async def record_reply(
    engine: AsyncEngine, reply: Reply, *, token_required: bool = True
) -> tuple[bool, RequestRow | None]:
    """Write a reply. Returns whether it was the first one, and the row; None if there is no such command (any more).

    The waiter is read after the reply is written, so an attempt in between finds the reply itself.

    Raises :class:`RefusedReply` if it is not from the recipient of the command. ``token_required`` False accepts a
    reply without a token; a wrong one is refused in any case.
    """
    stored = stored_values(engine)
    data = stored.encrypt_json(request_place(reply.key, "data"), reply.data)
    values = {"outcome": reply.outcome, "data": data, "answered_at": DatabaseNow(), "refusal": None}
    here = request_table.c.step_key == reply.key
    async with engine.connect() as connection:
        row = (await connection.execute(_select_row(reply.key))).first()
        if row is None:
            return False, None
        verify_sender(reply, _to_request_row(row, stored), token_required)
        written = await connection.execute(
            sa.update(request_table).where(here, request_table.c.outcome.is_(None)).values(**values)
        )
        row = (await connection.execute(_select_row(reply.key))).first()
    if row is None:
        return False, None
    return written.rowcount == 1, _to_request_row(row, stored)


def verify_sender(reply: Reply, row: RequestRow, token_required: bool) -> None:
    """Raise RefusedReply unless the reply comes from where the command went. A key can be guessed, its token cannot."""
    if row.reply_topic is not None and reply.topic != row.reply_topic:
        raise RefusedReply(f"the command asks for its reply in {row.reply_topic}, not in {reply.topic}")
    if row.reply_token is None or (reply.token is None and not token_required):
        return
    if reply.token is None:
        raise RefusedReply(
            f"the header {REPLY_TOKEN_HEADER} is missing: the participant must copy it from the command, or set "
            f"accept_replies_without_token under [kafka] until it does"
        )
    if not hmac.compare_digest(reply.token.encode(), row.reply_token.encode()):
        raise RefusedReply(f"the header {REPLY_TOKEN_HEADER} is not that of the command")


def _select_row(key: str, forward_key: str | None = None) -> sa.Select[Any]:
    columns = request_table.c
    read = ("step_key", "outcome", "data", "token", "reply_topic", "reply_token", "origin")
    forward = request_table.alias("forward_command")
    origin = sa.select(forward.c.origin).where(forward.c.step_key == forward_key).scalar_subquery()
    return sa.select(*(columns[name] for name in read), origin.label("forward_origin")).where(columns.step_key == key)


def _to_request_row(row: Any, stored: StoredValues) -> RequestRow:
    token = stored.decrypt_json(request_place(row.step_key, "token"), row.token)
    data = stored.decrypt_json(request_place(row.step_key, "data"), row.data)
    waiter = None if token is None else WaitingAttempt.from_text(token)
    return RequestRow(row.outcome, data, waiter, row.reply_topic, row.reply_token, row.origin, row.forward_origin)


def _insert_statement(dialect: str) -> str:
    """Waits for an open transaction that has inserted the same key; does not change an existing row.

    On MySQL it locks the existing row exclusively: IGNORE would take a shared lock, and upgrading that would deadlock
    with a reply that also needs the exclusive lock.
    """
    mysql = dialect in ("mysql", "mariadb")
    return f"""
    INSERT INTO saga_request
        (step_key, saga_id, step, generation, op, outcome, created_at, reply_topic, reply_token, origin)
    VALUES (:step_key, :saga_id, :step, :generation, :op, :outcome, :created_at, :reply_topic, :reply_token, :origin)
    ON {"DUPLICATE KEY UPDATE step_key = saga_request.step_key" if mysql else "CONFLICT DO NOTHING"}
    """


# Replies as messages: docs/reference/message-formats.md.
DONE, REJECTED, FAILED = "done", "rejected", "failed"
REPLY_OUTCOMES = (DONE, REJECTED, FAILED)

_MAX_STEP_KEY: int = request_table.c.step_key.type.length  # pyright: ignore[reportAttributeAccessIssue]


class MalformedReply(ValueError):
    """A reply that cannot be used; the message says why."""


class RefusedReply(Exception):
    """A reply that is not from the recipient of the command; the message says why."""


@dataclass(frozen=True, slots=True)
class Reply:
    """``key`` is the key of the command, ``data`` JSON: the result, or ``{"reason": …, "details": …}``.

    ``topic`` is where it was found, ``token`` what it gives to prove that its sender has received the command.
    """

    key: str
    outcome: str
    data: str
    topic: str
    token: str | None = field(default=None, repr=False)


def decode_reply(topic: str, headers: Mapping[str, str | None], value: bytes | None) -> Reply:
    """Raises :class:`MalformedReply`."""
    try:
        key, outcome, token = (
            headers.get(name) or "" for name in (STEP_KEY_HEADER, OUTCOME_HEADER, REPLY_TOKEN_HEADER)
        )
    except UnreadableHeader as error:
        raise MalformedReply(error.message) from None
    if not key:
        raise MalformedReply(f"the header {STEP_KEY_HEADER} is missing: the command cannot be identified")
    if len(key) > _MAX_STEP_KEY or "\0" in key:
        raise MalformedReply(f"the header {STEP_KEY_HEADER} is not the key of a command")
    if outcome not in REPLY_OUTCOMES:
        problem = f"is {outcome!r}" if outcome else "is missing"
        raise MalformedReply(f"the header {OUTCOME_HEADER} {problem}; it is one of {', '.join(REPLY_OUTCOMES)}")
    kept = _kept_value(value or b"null")
    text = encode_json(kept if outcome == DONE else _refusal_data(kept, outcome)).decode()
    return Reply(key, outcome, text, topic, token or None)


def outcome_of_reply(outcome: str, data: str, attempt: int) -> Outcome:
    """The outcome of a recorded reply; ``attempt`` is the number of the attempt that receives it."""
    parsed = decode_json(data)
    if outcome == DONE:
        return Outcome.done(parsed, attempt=attempt)
    failure = Failure("Rejected" if outcome == REJECTED else "Failed", parsed["reason"], parsed["details"])
    kind = "rejected" if outcome == REJECTED else "failed"
    return Outcome(kind, failure=failure, attempt=attempt, retryable=False)


def _refusal_data(data: Any, outcome: str) -> dict[str, Any]:
    """The reason and the details of a refusal, with defaults for what the reply leaves out."""
    match data:
        case {"reason": str(reason), **rest} if reason:
            details = rest.get("details")
            return {"reason": reason, "details": details if isinstance(details, dict) else {}}
        case str() if data:
            return {"reason": data, "details": {}}
        case dict():
            return {"reason": f"the participant replied {outcome}", "details": data}
    return {"reason": f"the participant replied {outcome}", "details": {}}


def _kept_value(value: bytes) -> Any:
    """The parsed value, or the placeholder for one that is too large for a result. Raises :class:`MalformedReply`."""
    if len(value) > MAX_RESPONSE_BYTES:
        return omitted(len(value))
    if has_more_values(value, MAX_RESULT_VALUES):
        return omitted(len(value), "values")
    try:
        return limit_size(parse_json(value))
    except UnicodeDecodeError as error:
        raise MalformedReply(f"the value is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except ValueError as error:
        raise MalformedReply(f"the value is not usable JSON: {error}") from None
