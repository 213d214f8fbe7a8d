"""A real Iceberg REST catalog for tests: HTTP in front of a SQL catalog, with transactions over several tables."""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import sqlalchemy as sa
from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableRequest, Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from sqlalchemy.exc import IntegrityError

from saga_spark.sinks.iceberg.pyiceberg_internals import new_pointer_row, write_next_metadata

ENDPOINTS = [
    "GET /v1/{prefix}/namespaces",
    "POST /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "POST /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}",
]
TRANSACTIONS = "POST /v1/{prefix}/transactions/commit"


@contextmanager
def serve(
    catalog: SqlCatalog,
    *,
    transactions: bool = True,
    fails_after: list[int] | None = None,
    on_failure: Callable[[], None] = lambda: None,
) -> Iterator[str]:
    """The address of a catalog server over ``catalog``. Without ``transactions`` it commits single tables only.

    ``fails_after``: its transactions commit table by table, and the next of them fail after so many tables.
    ``on_failure`` is called then, before the client is answered.
    """

    class Handler(RestHandler):
        backing = catalog
        endpoints = [*ENDPOINTS, TRANSACTIONS] if transactions else ENDPOINTS
        failures = fails_after
        before_failure = staticmethod(on_failure)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Refused(Exception):
    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


class RestHandler(BaseHTTPRequestHandler):
    backing: SqlCatalog
    endpoints: Sequence[str]
    failures: list[int] | None
    before_failure: Callable[[], None]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a test shows what failed by itself."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = [unquote(part) for part in self.path.partition("?")[0].strip("/").split("/")][1:]
        try:
            status, text = 200, self._route(path, body)
        except (NoSuchTableError, NoSuchNamespaceError) as error:
            status, text = 404, failure(404, type(error).__name__, str(error))
        except (CommitFailedException, NamespaceAlreadyExistsError, IntegrityError) as error:
            status, text = 409, failure(409, type(error).__name__, str(error))
        except Refused as error:
            status, text = error.status, failure(error.status, error.kind, str(error))
        if text == "":
            status = 204
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(BrokenPipeError):  # the client has been killed
                self.wfile.write(text.encode())

    def _route(self, path: list[str], body: bytes) -> str:
        catalog = self.backing
        match self.command, path:
            case "GET", ["config"]:
                return json.dumps({"defaults": {}, "overrides": {}, "endpoints": list(self.endpoints)})
            case "POST", ["namespaces"]:
                wanted = json.loads(body)
                catalog.create_namespace(tuple(wanted["namespace"]), wanted.get("properties", {}))
                return json.dumps({"namespace": wanted["namespace"], "properties": {}})
            case (("GET" | "HEAD"), ["namespaces", space]):
                names = tuple(space.split("\x1f"))
                return json.dumps({"namespace": names, "properties": dict(catalog.load_namespace_properties(names))})
            case "POST", ["namespaces", space, "tables"]:
                return self._create(tuple(space.split("\x1f")), _wanted(body))
            case (("GET" | "HEAD"), ["namespaces", space, "tables", name]):
                table = catalog.load_table((*space.split("\x1f"), name))
                return answer(table.metadata, table.metadata_location)
            case "POST", ["namespaces", space, "tables", name]:
                request = json.loads(body)
                request.setdefault("identifier", {"namespace": space.split("\x1f"), "name": name})
                [(metadata, location)] = self._commit([CommitTableRequest.model_validate(request)])
                return answer(metadata, location)
            case "POST", ["transactions", "commit"] if TRANSACTIONS in self.endpoints:
                changes = [CommitTableRequest.model_validate(row) for row in json.loads(body)["table-changes"]]
                if self.failures is None:
                    self._commit(changes)
                else:
                    self._commit_by_table(changes, self.failures)
                return ""
        raise Refused(404, "NotFoundException", f"{self.command} {self.path}")

    def _create(self, space: tuple[str, ...], wanted: CreateTableRequest) -> str:
        if not self.backing.namespace_exists(space):
            raise NoSuchNamespaceError(".".join(space))
        # A new location each time, as servers do that never reuse one.
        location = "/".join(
            (self.backing.properties["warehouse"], ".".join(space), f"{wanted.name}-{uuid.uuid4().hex[:8]}")
        )
        parts, order = wanted.partition_spec or UNPARTITIONED_PARTITION_SPEC, wanted.write_order or UNSORTED_SORT_ORDER
        metadata = new_table_metadata(wanted.table_schema, parts, order, location, wanted.properties)
        if wanted.stage_create:
            return answer(metadata, None)
        made = self.backing.create_table(
            (*space, wanted.name), wanted.table_schema, location, parts, properties=wanted.properties
        )
        return answer(made.metadata, made.metadata_location)

    def _commit_by_table(self, requests: Sequence[CommitTableRequest], failures: list[int]) -> None:
        """One transaction for each table, as some servers do."""
        last = failures.pop(0) if failures else len(requests)
        for request in requests[:last]:
            self._commit([request])
        if last < len(requests):
            self.before_failure()
            raise Refused(503, "ServiceUnavailableException", "the server stops")

    def _commit(self, requests: Sequence[CommitTableRequest]) -> list[tuple[TableMetadata, str]]:
        """All or none, in one database transaction."""
        catalog, done = self.backing, []
        with catalog.engine.begin() as connection:
            for request in sorted(
                requests, key=lambda request: (request.identifier.namespace.root, request.identifier.name)
            ):
                space, name = tuple(request.identifier.namespace.root), request.identifier.name
                current = self._load((*space, name))
                new = write_next_metadata(catalog, current, (*space, name), request.requirements, request.updates)
                done.append((new.metadata, new.metadata_location))
                if current is None:
                    row = new_pointer_row(catalog, ".".join(space), name, new.metadata_location)
                    connection.execute(sa.insert(IcebergTables).values(**row))
                    continue
                moved = connection.execute(
                    sa.update(IcebergTables)
                    .where(
                        IcebergTables.catalog_name == catalog.name,
                        IcebergTables.table_namespace == ".".join(space),
                        IcebergTables.table_name == name,
                        IcebergTables.metadata_location == current.metadata_location,
                    )
                    .values(metadata_location=new.metadata_location)
                )
                if moved.rowcount != 1:
                    raise CommitFailedException(f"{name} has changed meanwhile")
        return done

    def _load(self, identifier: tuple[str, ...]) -> Table | None:
        try:
            return self.backing.load_table(identifier)
        except NoSuchTableError:
            return None


def _wanted(body: bytes) -> CreateTableRequest:
    return CreateTableRequest.model_validate({"location": None, **json.loads(body)})


def answer(metadata: TableMetadata, location: str | None) -> str:
    where = json.dumps(location)
    return f'{{"metadata-location": {where}, "metadata": {metadata.model_dump_json()}, "config": {{}}}}'


def failure(status: int, kind: str, message: str) -> str:
    return json.dumps({"error": {"message": message, "type": kind, "code": status}})
