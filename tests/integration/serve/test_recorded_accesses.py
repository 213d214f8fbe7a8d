"""Starts over HTTP and calls of the codec endpoint are in the audit with the name of their token, and no caller waits
for that: a real server, worker and API process.
"""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.helpers.database_servers import HOST
from tests.helpers.forked_commands import run_command
from tests.helpers.free_ports import free_port
from tests.helpers.processes import CommandProcess, TemporalServer, WorkerProcess
from tests.helpers.waiting import LIMIT, until

TOML = """
definitions = ["."]
[temporal]
address = "{address}"
task_queue = "recorded-accesses"
[connections.books]
url = "sqlite:///{books}"
[ledger]
connection = "books"
[codec]
key = {{file = "codec.key"}}
[serve.tokens.shop]
secret = {{env = "SHOP_TOKEN"}}
scopes = ["read", "start"]
[serve.tokens.support]
secret = {{env = "SUPPORT_TOKEN"}}
scopes = ["decode"]
"""
WAITS = """
saga: waits
input: {type: object, properties: {n: {type: integer}}}
steps:
  - {id: go, uses: wait, with: {signal: go, timeout: 1h}}
"""
TOKENS = {"SHOP_TOKEN": "starts-sagas-only", "SUPPORT_TOKEN": "decodes-values-only"}


@pytest.fixture
def folder(temporal: TemporalServer, tmp_path: Path) -> Path:
    (tmp_path / "saga.toml").write_text(TOML.format(address=temporal.address, books=tmp_path / "books.db"))
    (tmp_path / "codec.key").write_text(secrets.token_hex(32))
    (tmp_path / "waits.saga.yaml").write_text(WAITS)
    setup = run_command(["setup"], tmp_path, env=TOKENS)
    assert setup.returncode == 0, setup.stderr
    return tmp_path


def client(port: int, token: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {TOKENS[token]}"}
    return httpx.Client(base_url=f"http://{HOST}:{port}", headers=headers, timeout=LIMIT)


@contextlib.contextmanager
def without_audit(books: sqlite3.Connection) -> Iterator[None]:
    books.execute("alter table saga_audit rename to saga_audit_elsewhere")
    try:
        yield
    finally:
        books.execute("alter table saga_audit_elsewhere rename to saga_audit")


def start(shop: httpx.Client, saga_id: str, n: Any) -> int:
    return shop.post("/sagas/waits", json={"id": saga_id, "input": {"n": n}}).status_code


def decode(support: httpx.Client, payloads: int) -> int:
    written = {"metadata": {}, "data": base64.b64encode(b"1").decode()}
    headers = {"X-Namespace": "default"}
    return support.post("/codec/decode", json={"payloads": [written] * payloads}, headers=headers).status_code


async def test_starts_and_decoded_values_are_recorded_with_the_name_of_the_token(folder: Path) -> None:
    port = free_port()
    with contextlib.ExitStack() as stack:
        stack.enter_context(WorkerProcess("worker", folder))
        serve = stack.enter_context(CommandProcess("serve", folder, "serve", "--listen", f"{HOST}:{port}", env=TOKENS))
        shop, support = (stack.enter_context(client(port, token)) for token in TOKENS)
        books = stack.enter_context(
            contextlib.closing(sqlite3.connect(folder / "books.db", isolation_level=None, timeout=LIMIT))
        )

        def rows(what: str) -> list[tuple[Any, ...]]:
            query = "select saga_id, who, outcome, detail, payloads from saga_audit where what = ? order by at, id"
            return books.execute(query, [what]).fetchall()

        began = time.time()
        with without_audit(books):
            assert [start(shop, "one", 1) for _ in range(2)] == [202, 202]
            assert start(shop, "one", 2) == 409
            assert start(shop, "no/id", 1) == 422
            assert start(shop, "two", "wrong") == 422
        await until(lambda: len(rows("start")) == 3)
        assert rows("start") == [("one", "shop", outcome, None, None) for outcome in ("started", "existing", "refused")]
        [(at,)] = books.execute("select at from saga_audit where outcome = 'started'")
        assert began <= books.execute("select strftime('%s', ?) + 1", [at]).fetchone()[0]

        shown = json.loads(run_command(["-o", "json", "show", "one"], folder, env=TOKENS).stdout)["accesses"]
        assert [(each["what"], each["who"], each["outcome"]) for each in shown] == [
            ("start", "shop", "started"),
            ("start", "shop", "existing"),
            ("start", "shop", "refused"),
        ]
        assert "shop has asked to start it: started" in run_command(["show", "one"], folder, env=TOKENS).stdout

        assert [decode(support, count) for count in (3, 0)] == [200, 200]
        await until(lambda: rows("decode") == [("", "support", None, "default", 3)])
        assert decode(support, 4) == 200
        await until(lambda: rows("decode") == [("", "support", None, "default", 7)])
        doctor = run_command(["doctor"], folder, env=TOKENS).stdout
        assert "✔ decoded values" in doctor
        assert "support has had 7 payloads decoded within 7 days, the last at 20" in doctor

        assert start(shop, "last", 1) == 202
        assert serve.stop() == 0
        assert rows("start")[-1][:3] == ("last", "shop", "started"), "a process that is stopped writes what waits"
