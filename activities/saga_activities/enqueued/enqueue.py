"""Starts and signals sagas in the transaction of the caller: ``await enqueue(session, "checkout", input, id=…)``.

Only the row is written here. The relay or a worker delivers it as soon as the transaction is committed.
"""

from __future__ import annotations

import inspect
from collections.abc import Coroutine, Mapping
from typing import Any

from saga_activities.awaited_calls import to_be_awaited
from saga_activities.input_limits import MAX_ENQUEUED_BYTES, MAX_ENQUEUED_NAME
from saga_activities.json_results import to_json_value
from sagas.definition.saga_ids import check_saga_id, check_saga_name
from sagas.errors import UsageError
from sagas.text.exact_json import encode_json
from sagas.text.json_values import json_problem, parse_json
from sagas.text.printable import printable_line
from sagas.text.shortening import shorten

_COLUMNS = "saga, saga_id, signal_name, input, order_key"
_SQLALCHEMY_INSERT = (
    f"INSERT INTO saga_enqueued ({_COLUMNS}) VALUES (:saga, :saga_id, :signal_name, :input, :order_key)"
)
_PSYCOPG_INSERT = (
    f"INSERT INTO saga_enqueued ({_COLUMNS}) VALUES (%(saga)s, %(saga_id)s, %(signal_name)s, %(input)s, %(order_key)s)"
)


def enqueue(
    session: Any, saga: str, input: Any = None, *, id: str | None = None, key: str | None = None
) -> Coroutine[Any, Any, None]:
    """Start a saga when the transaction of ``session`` is committed, and never if it is rolled back.

    ``session``: an AsyncSession or AsyncConnection of SQLAlchemy, or an AsyncConnection or AsyncCursor of psycopg, on a
    database of ``[enqueue]``. ``id``: the saga's; an id that was started before with the same input is not started
    again, and if that saga was compensated, the row is refused. Without one the ``id`` of the definition counts.
    ``key``: rows with equal keys are delivered in the order in which they were written; default: the id.

    Raises UsageError if the id, the key or the input cannot be stored. Whether the saga exists and takes the input is
    checked when the row is delivered: see `saga enqueued list`.
    """
    return to_be_awaited("enqueue", _enqueue(session, saga, input, id, key))


async def _enqueue(session: Any, saga: str, input: Any, id: str | None, key: str | None) -> None:
    check_saga_name(saga)
    if id is not None:
        check_saga_id(id)
    what = f"the input of {saga}"
    values = {"saga": saga, "saga_id": id, "signal_name": None, "input": _json({} if input is None else input, what)}
    await _insert(session, {**values, "order_key": _checked_key(key)})


def enqueue_signal(
    session: Any, saga_id: str, name: str, data: Any = None, *, saga: str | None = None, key: str | None = None
) -> Coroutine[Any, Any, None]:
    """Signal a saga when the transaction of ``session`` is committed, and never if it is rolled back.

    ``session`` and ``key`` as for :func:`enqueue`; as the default key is the id of the saga, a signal that is written
    after the start of its saga is delivered after it. ``saga``: the name that the saga must have. Only the first
    signal of a name counts for a saga.

    Raises UsageError as :func:`enqueue` does.
    """
    return to_be_awaited("enqueue_signal", _enqueue_signal(session, saga_id, name, data, saga, key))


async def _enqueue_signal(session: Any, saga_id: str, name: str, data: Any, saga: str | None, key: str | None) -> None:
    if saga is not None:
        check_saga_name(saga)
    check_saga_id(saga_id)
    _check_text(name, "the name of a signal")
    values = {"saga": saga, "saga_id": saga_id, "signal_name": name}
    text = None if data is None else _json(data, f"the data of the signal {shorten(name)}")
    await _insert(session, {**values, "input": text, "order_key": _checked_key(key)})


def _json(value: Any, what: str) -> str:
    try:
        text = encode_json(to_json_value(value)).decode()
        parse_json(text)  # as the delivery does
    except ValueError as error:
        raise UsageError(f"{what} cannot be written as JSON: {error}") from None
    if (size := len(text.encode())) > MAX_ENQUEUED_BYTES:
        raise UsageError(
            f"{what} has {size:,} bytes, and may have {MAX_ENQUEUED_BYTES:,}: store it, and pass its key instead"
        )
    return text


def _checked_key(key: str | None) -> str | None:
    if key is not None:
        _check_text(key, "an order key")
    return key


def _check_text(text: object, what: str) -> None:
    if not isinstance(text, str):
        raise UsageError(f"{what} must be a string, not {type(text).__name__}")
    if not text.strip() or len(text) > MAX_ENQUEUED_NAME or "\0" in text or json_problem(text) is not None:
        raise UsageError(
            f"{what} has 1 to {MAX_ENQUEUED_NAME} characters, and is not {printable_line(shorten(text))!r}"
        )


async def _insert(session: Any, values: Mapping[str, Any]) -> None:
    packages = {base.__module__.partition(".")[0] for base in type(session).__mro__}
    is_known = not packages.isdisjoint({"sqlalchemy", "psycopg"})
    if not is_known or not inspect.iscoroutinefunction(getattr(session, "execute", None)):
        raise UsageError(
            f"enqueue cannot write with {type(session).__module__}.{type(session).__qualname__}",
            help="pass an AsyncSession or AsyncConnection of SQLAlchemy, or an AsyncConnection or AsyncCursor of"
            " psycopg; with any other driver, insert the row yourself:"
            " 'Start a saga in your own transaction' of the documentation has the statement",
        )
    if "sqlalchemy" in packages:
        from sqlalchemy import text

        await session.execute(text(_SQLALCHEMY_INSERT), dict(values))
    else:
        await session.execute(_PSYCOPG_INSERT, dict(values))
