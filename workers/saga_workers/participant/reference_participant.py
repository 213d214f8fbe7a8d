"""A reference participant: it reserves stock over HTTP, each reservation once, and releases it once.

A saga calls `POST /reserve`, and `POST /release` to undo it; at its commit point `POST /confirm`. Everything rests on
one table, `operation`, with one row for each operation of a key, written in the transaction of its effect:

=======  ===========================================================================================================
do       inserts (key, do). The row is there: the stored response again; refused if the row is an undo's, if the key
         has been undone, or if the arguments differ
undo     inserts (key, do) in place of a request that never arrived, which is refused from then on. Otherwise inserts
         (key, confirm) in place of a confirm, so that none can follow, releases, and inserts (key, undo)
confirm  inserts (key, confirm) after a request that was done and not undone
=======  ===========================================================================================================

So whatever arrives first decides, and whatever arrives again gets the stored response.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from saga_workers.participant.json_requests import answer_json
from saga_workers.runtime.http_server import HttpServer, error_response, json_response
from saga_workers.runtime.shutdown import stop_on_signals
from sagas.errors import UsageError
from sagas.text.exact_json import canonical_json, decode_json, encode_json

MAX_QUANTITY = 100
"""A request for more is rejected: an example of a business rule."""

SCHEMA = """
create table if not exists operation (
    key text, op text, reason text, arguments text, status integer, response text, primary key (key, op)
);
create table if not exists reservation (
    id integer primary key autoincrement, key text unique, sku text, quantity integer, state text
);
"""

Reply = tuple[int, dict[str, Any]]
"""A status and a JSON body."""


class ReferenceParticipant:
    """The service. ``file`` is its SQLite database, by default in memory. ``app`` answers the requests."""

    def __init__(self, file: str = ":memory:") -> None:
        self._database = sqlite3.connect(file, isolation_level=None, timeout=10.0)
        self._database.executescript(SCHEMA)
        self.app = Starlette(
            routes=[
                Route("/reserve", self._on_reserve, methods=["POST"]),
                Route("/release", self._on_release, methods=["POST"]),
                Route("/confirm", self._on_confirm, methods=["POST"]),
                Route("/reservations", self._on_count, methods=["GET"]),
            ]
        )

    def close(self) -> None:
        self._database.close()

    # --- the operations ----------------------------------------------------------------------------------------

    def reserve(self, key: str, arguments: Any) -> Reply:
        """The forward request under ``key``."""
        with self._transaction():
            written = canonical_json(arguments)
            if not self._insert(key, "do", "do", written):
                reason, first_arguments, *stored = self._row(key, "do")
                if reason == "undo" or self._row(key, "undo"):
                    return 409, {"error": "this key has been undone"}
                if first_arguments != written:
                    return 400, {"error": "this key was used with other arguments"}
                return _reply(stored)
            return self._store(key, "do", self._new_reservation(key, arguments))

    def release(self, key: str) -> Reply:
        """The undo of the request ``key``."""
        with self._transaction():
            if self._insert(key, "do", "undo") or self._row(key, "do")[0] == "undo":
                return 200, {"released": False}  # it never arrived, and never will
            if stored := self._row(key, "undo"):
                return _reply(stored[2:])
            if not self._insert(key, "confirm", "undo") and self._row(key, "confirm")[0] == "confirm":
                return 409, {"error": "this reservation is confirmed"}
            changed = self._database.execute("update reservation set state = 'released' where key = ?", [key])
            self._insert(key, "undo", "undo")
            return self._store(key, "undo", (200, {"released": changed.rowcount == 1}))

    def confirm(self, key: str) -> Reply:
        """Make the reservation of the request ``key`` final."""
        with self._transaction():
            done = self._row(key, "do")
            if done is None or done[0] == "undo" or self._row(key, "undo") or done[2] != 201:
                return 409, {"error": "there is no reservation to confirm"}
            if not self._insert(key, "confirm", "confirm"):
                return _reply(self._row(key, "confirm")[2:])
            self._database.execute("update reservation set state = 'confirmed' where key = ?", [key])
            return self._store(key, "confirm", (200, {"confirmed": True}))

    def count(self, key: str | None = None) -> int:
        """The reservations that are not released, all or those of one key."""
        sql = "select count(*) from reservation where state <> 'released' and (?1 is null or key = ?1)"
        return self._database.execute(sql, [key]).fetchone()[0]

    def _new_reservation(self, key: str, arguments: Any) -> Reply:
        sku, quantity = (arguments.get("sku"), arguments.get("quantity")) if isinstance(arguments, dict) else (None, 0)
        if not isinstance(sku, str) or type(quantity) is not int or not 0 < quantity <= MAX_QUANTITY:
            # Stored like any response: under this key it stays rejected.
            return 422, {"error": f"sku must be a string, and quantity a number from 1 to {MAX_QUANTITY}"}
        made = self._database.execute(
            "insert into reservation (key, sku, quantity, state) values (?, ?, ?, 'tentative')", [key, sku, quantity]
        )
        return 201, {"reservation": made.lastrowid, "sku": sku, "quantity": quantity}

    # --- the table `operation` ---------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing, and one at a time: what two requests read and write must not interleave."""
        self._database.execute("begin immediate")
        try:
            yield
        except BaseException:
            self._database.execute("rollback")
            raise
        self._database.execute("commit")

    def _insert(self, key: str, op: str, reason: str, arguments: str = "") -> bool:
        """Insert the row of an operation; False if it is there."""
        sql = "insert or ignore into operation (key, op, reason, arguments) values (?, ?, ?, ?)"
        return self._database.execute(sql, [key, op, reason, arguments]).rowcount == 1

    def _row(self, key: str, op: str) -> Any:
        sql = "select reason, arguments, status, response from operation where key = ? and op = ?"
        return self._database.execute(sql, [key, op]).fetchone()

    def _store(self, key: str, op: str, reply: Reply) -> Reply:
        sql = "update operation set status = ?, response = ? where key = ? and op = ?"
        self._database.execute(sql, [reply[0], encode_json(reply[1]).decode(), key, op])
        return reply

    # --- HTTP --------------------------------------------------------------------------------------------------

    async def _on_reserve(self, request: Request) -> Response:
        return await _respond(request, lambda body: self.reserve(_header(request, "idempotency-key"), body))

    async def _on_release(self, request: Request) -> Response:
        return await _respond(request, lambda _: self.release(_header(request, "saga-undoes")))

    async def _on_confirm(self, request: Request) -> Response:
        return await _respond(request, lambda body: self.confirm(_forward_key(body)))

    async def _on_count(self, request: Request) -> Response:
        return json_response(200, {"count": self.count(request.query_params.get("key"))})


async def serve_reference_participant(address: str, file: str, *, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; ``ready`` gets a sentence with the URL.

    Raises UsageError if the address cannot be listened on, or the file is not a database.
    """
    stop = stop_on_signals()
    try:
        participant = ReferenceParticipant(file)
    except sqlite3.Error as error:
        raise UsageError(f"{file} cannot be opened as a SQLite database: {error}") from None
    try:
        server = HttpServer(address, participant.app, option="--address", description="the reference participant")
        async with server as listening:
            host = address.rpartition(":")[0] or "127.0.0.1"
            ready(f"the reference participant listens on http://{host}:{listening.port}")
            await stop.wait()
    finally:
        participant.close()


class _MalformedRequest(Exception):
    """A request that is not understood; it has no effect and is not stored."""


def _header(request: Request, name: str) -> str:
    """A key as the saga has it; in a header it is percent-encoded."""
    value = request.headers.get(name)
    if not value:
        raise _MalformedRequest(f"the header {name} is missing")
    return unquote(value)


def _forward_key(body: Any) -> str:
    """The key of the request that is confirmed."""
    key = body.get("key") if isinstance(body, dict) else None
    if not isinstance(key, str) or not key:
        raise _MalformedRequest('the body of a confirm is {"key": the key of the request}')
    return key


def _reply(stored: Any) -> Reply:
    status, response = stored
    return status, decode_json(response)


async def _respond(request: Request, operation: Callable[[Any], Reply]) -> Response:
    async def answer(body: Any) -> Response:
        try:
            return json_response(*operation(body))
        except _MalformedRequest as problem:
            return error_response(400, str(problem))

    return await answer_json(request, answer)
