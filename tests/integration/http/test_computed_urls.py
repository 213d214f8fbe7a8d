"""A `url` from data: only hosts on the connection's list, only addresses that may be called, and no credentials."""

from __future__ import annotations

import json
import socket
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from saga_activities.http import HttpConnection, run_http
from sagas.protocol.outcomes import Outcome
from sagas.settings import HttpService
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.payment_server import PaymentServer
from tests.helpers.processes import TemporalServer
from tests.integration.http.conftest import Connect

ECHO = {"method": "POST", "json": {"account": "h-1"}}
LOOPBACK = ["127.0.0.0/8", "::1"]


async def call(connection: HttpConnection, url: str, **options: Any) -> Outcome:
    arguments = {**ECHO, "url": url}
    return await run_http(arguments, **{"key": "c-1/a", "connection": connection, "timeout": 5.0, **options})


def on_host(url: str, host: str) -> str:
    return url.replace(str(urlsplit(url).hostname), host) + "/echo"


@pytest.fixture
def signing(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes connections with credentials to a host that is not called."""
    monkeypatch.setenv("CRM_TOKEN", "token-of-the-connection")
    monkeypatch.setenv("CRM_SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    options = {"auth": {"bearer": {"env": "CRM_TOKEN"}}, "signing_secret": {"env": "CRM_SECRET"}}
    return lambda *hosts: connect("https://crm.example.com", **options, allowed_hosts=list(hosts))


async def test_a_listed_host_gets_the_request_without_credentials(server: PaymentServer, signing: Any) -> None:
    outcome = await call(signing("localhost", *LOOPBACK), on_host(server.url, "localhost"))
    assert outcome.kind == "done", outcome.failure
    headers = outcome.result["headers"]
    assert headers["host"] == urlsplit(server.url).netloc.replace("127.0.0.1", "localhost")
    assert headers["idempotency-key"] == "c-1/a"
    assert not {"authorization", "webhook-signature"} & headers.keys()
    assert "token-of-the-connection" not in json.dumps(server.ledger())


@pytest.mark.parametrize(
    ("listed", "host", "message"),
    [
        ((), "localhost", "another host than its connection and none of its `allowed_hosts`"),
        (("localhost",), "127.0.0.1", "another host"),
        (("localhost",), "localhost", "is not public"),
        (("*.localhost",), "metadata.localhost", "is not public"),
    ],
)
async def test_other_hosts_and_private_addresses_are_not_called(
    server: PaymentServer, signing: Any, monkeypatch: pytest.MonkeyPatch, listed: Any, host: str, message: str
) -> None:
    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda name, *more, **named: resolve("127.0.0.1", *more, **named))
    for attempt, kind in ((1, "failed"), (2, "failed")):
        outcome = await call(signing(*listed), on_host(server.url, host), attempt=attempt)
        assert (outcome.kind, outcome.retryable) == (kind, False)
        assert outcome.failure is not None
        assert message in outcome.failure.message
    monkeypatch.undo()
    assert server.ledger()["requests"] == []


async def test_the_checked_address_is_the_one_that_is_called(
    server: PaymentServer, signing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name whose address changes between two look-ups gains nothing: there is one look-up."""
    asked: list[str] = []
    resolve = socket.getaddrinfo

    def rebind(name: Any, *more: Any, **named: Any) -> Any:
        asked.append(name)
        return resolve("127.0.0.1" if len(asked) == 1 else "127.0.0.2", *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", rebind)
    url = on_host(server.url, "files.customers.example")
    outcome = await call(signing("*.customers.example", "127.0.0.1"), url)
    assert outcome.kind == "done", outcome.failure
    names = [name for name in asked if name in ("files.customers.example", b"files.customers.example")]
    assert len(names) == 1


READ = """
saga: read
input: {type: object, required: [id, base], properties: {id: {type: string}, base: {type: string}}}
steps:
  - {id: path, uses: http, with: {connection: crm, path: "/orders/${{ input.id }}", done: [404]}}
  - {id: url, uses: http, with: {connection: crm, url: "${{ input.base }}/orders/${{ input.id }}", done: [404]}}
  - {id: key, uses: http, with: {connection: crm, path: "/holds/${{ step.key }}", done: [404]}}
"""


async def test_an_id_of_a_saga_names_one_resource(
    temporal: TemporalServer, server: PaymentServer, tmp_path: Path
) -> None:
    crm = HttpService(name="crm", root=tmp_path, url_setting=server.url)
    project = make_project(tmp_path, {"read": READ}, [], address=temporal.address, options={"crm": crm})
    assert project.diagnostics == []
    id = f"read-{uuid.uuid4()}"
    async with running_worker(project) as client:
        await client.start("read", {"id": "1/../2?admin=1#x", "base": server.url}, id=id)
        refused = await finished(client, id)
        await client.start("read", {"id": "1/2?admin=1#x", "base": server.url}, id=f"{id}-2")
        assert (await finished(client, f"{id}-2"))["state"] == "COMPLETED"
    assert (refused["state"], refused["reason"]["kind"]) == ("COMPENSATED", "definition")
    sent = [request["path"] for request in server.ledger()["requests"]]
    assert sent == ["/orders/1%2F2%3Fadmin%3D1%23x", "/orders/1%2F2%3Fadmin%3D1%23x", f"/holds/{id}-2%2Fkey"]


async def test_a_literal_url_without_a_connection_may_be_private(server: PaymentServer) -> None:
    outcome = await run_http({**ECHO, "url": f"{server.url}/echo"}, key="c-1/a", timeout=60.0)
    assert outcome.kind == "done"


async def test_a_proxy_of_the_environment_does_not_see_what_is_sent_to_this_machine(
    server: PaymentServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PaymentServer() as proxy:
        for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(variable, proxy.url)
        monkeypatch.setenv("CRM_TOKEN", "token-of-the-connection")
        crm = connect(server.url, auth={"bearer": {"env": "CRM_TOKEN"}})
        arguments = {**ECHO, "path": "/echo"}
        assert (await run_http(arguments, key="c-1/a", connection=crm, timeout=60.0)).kind == "done"
        monkeypatch.undo()
        assert proxy.ledger()["requests"] == []


@pytest.mark.parametrize(("url", "sees"), [("http://crm.example/echo", 1), ("http://files.customers.example/echo", 0)])
async def test_a_proxy_of_the_environment_gets_requests_to_other_machines_but_not_to_hosts_from_data(
    server: PaymentServer, connect: Connect, monkeypatch: pytest.MonkeyPatch, url: str, sees: int
) -> None:
    resolve = socket.getaddrinfo
    there = {"files.customers.example", b"files.customers.example"}
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda name, *more, **named: resolve("127.0.0.1" if name in there else name, *more, **named),
    )
    monkeypatch.setenv("HTTP_PROXY", server.url)
    crm = connect("http://crm.example", allowed_hosts=["*.customers.example", "127.0.0.1"])
    with PaymentServer() as nobody:  # its port is closed when it is called
        port = urlsplit(nobody.url).port
    host_from_data = url.replace(".customers.example", f".customers.example:{port}")
    outcome = await call(crm, url if sees else host_from_data)
    monkeypatch.undo()
    assert len(server.ledger()["requests"]) == sees, outcome
