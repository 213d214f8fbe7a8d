"""A small payment service in a process of its own: what a real HTTP participant of a saga looks like.

It keeps a ledger, honours ``Idempotency-Key`` (also for rejections), and refuses a key whose undo it has received.
Faults can be configured: the next request is slow, loses its response after taking effect, is answered 503 …, or the
whole service ignores keys. It does not import this project.

``python tests/helpers/payment_server.py [--port 0] [--ignore-keys] [--token T] [--cert F --key F [--client-ca F]]``
prints its port and serves until it is killed.

    POST /charges   {account, amount}      201 {id, account, amount}; account "broke": 422, "banned": 409
    POST /refunds   {charge} + Saga-Undoes 200 {refunded: true|false}; the undone key is refused (409) from then on
    GET  /charges?key=…                    the charge made under that key; 404 when there is none
    POST /token                            OAuth2 client credentials
    ANY  /echo, /large?bytes=n, /moved     what was sent; a large body; a redirect to ?to=…, else to itself
    GET  /_ledger, PUT /_faults            for tests: what happened; what shall happen to the next requests
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections import deque
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

CLIENT_ID, CLIENT_SECRET = "saga-client", "s3cret-of-the-client"


class Service:
    """The state of the service. One lock: every effect and its key are recorded together."""

    def __init__(self, *, ignore_keys: bool, token: str | None) -> None:
        self.lock = threading.Lock()
        self.ignore_keys = ignore_keys
        self.token = token
        self.charges: list[dict[str, Any]] = []
        self.refunds: list[dict[str, Any]] = []
        self.answers: dict[str, tuple[str, int, Any]] = {}
        self.undone: set[str] = set()
        self.requests: list[dict[str, Any]] = []
        self.faults: deque[dict[str, Any]] = deque()
        self.tokens: list[str] = []

    def once(self, key: str | None, body: str, effect: Any) -> tuple[int, Any]:
        """Run ``effect`` unless the key has an answer already."""
        if key is None or self.ignore_keys:
            return effect()
        if key in self.undone:
            return 409, {"error": "this key has been undone"}
        if key in self.answers:
            sent, status, answer = self.answers[key]
            return (status, answer) if sent == body else (422, {"error": "this key was used with another body"})
        status, answer = effect()
        self.answers[key] = (body, status, answer)
        return status, answer

    def charge(self, key: str | None, order: dict[str, Any]) -> tuple[int, Any]:
        if order["account"] == "broke":
            return 422, {"error": "card declined"}
        if order["account"] == "banned":
            return 409, {"error": "account closed"}
        charge = {"id": f"ch-{len(self.charges) + 1}", "key": key, **order}
        self.charges.append(charge)
        return 201, {name: charge[name] for name in ("id", "account", "amount")}

    def refund(self, undoes: str | None, order: dict[str, Any]) -> tuple[int, Any]:
        if undoes is not None:
            self.undone.add(undoes)
        for charge in self.charges:
            refers_to_charge = charge["id"] == order.get("charge") or (undoes is not None and charge["key"] == undoes)
            if refers_to_charge and all(refund["charge"] != charge["id"] for refund in self.refunds):
                self.refunds.append({"charge": charge["id"], "amount": charge["amount"]})
                return 200, {"refunded": True}
        return 200, {"refunded": False}

    def ledger(self) -> dict[str, Any]:
        balance = sum((Decimal(str(charge["amount"])) for charge in self.charges), Decimal(0))
        balance -= sum((Decimal(str(refund["amount"])) for refund in self.refunds), Decimal(0))
        return {
            "charges": self.charges,
            "refunds": self.refunds,
            "balance": str(balance),
            "undone": sorted(self.undone),
            "requests": self.requests,
            "tokens": self.tokens,
        }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: Service

    def handle_any(self) -> None:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
        if url.path == "/_ledger":
            with self.service.lock:
                return self.answer(200, self.service.ledger())
        if url.path == "/_faults":
            with self.service.lock:
                self.service.faults.extend(json.loads(body))
            return self.answer(200, {})
        with self.service.lock:
            sent = {"method": self.command, "path": self.path, "body": body}
            self.service.requests.append({**sent, "headers": {k.lower(): v for k, v in self.headers.items()}})
            if url.path == "/token":
                return self.answer(*self.issue_token(body))
            fault = self.service.faults.popleft() if self.service.faults else {}
        if fault.get("delay_before"):
            time.sleep(fault["delay_before"])
        if "status" in fault:
            return self.answer(fault["status"], fault.get("body", {"error": "fault"}), fault.get("headers"))
        if fault.get("drop") == "before":
            return self.drop()
        with self.service.lock:
            status, answer, headers = self.route(url.path, parse_qs(url.query), body)
        if fault.get("drop") == "after":
            return self.drop()
        if fault.get("delay_after"):
            time.sleep(fault["delay_after"])
        if fault.get("cut"):
            self.send_response(status)
            self.send_header("content-length", "1000")
            self.end_headers()
            self.wfile.write(b'{"id": "ch')
            return self.drop()
        self.answer(status, answer, headers)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

    def route(self, path: str, query: dict[str, list[str]], body: str) -> tuple[int, Any, dict[str, str] | None]:
        service, key = self.service, self.headers.get("Idempotency-Key")
        if path == "/large":
            return 200, "x" * int(query["bytes"][0]), None
        if path == "/moved":
            return 302, {}, {"location": query.get("to", ["/moved"])[0]}
        if service.token and self.headers.get("Authorization") not in [f"Bearer {each}" for each in self.valid()]:
            return 401, {"error": "no valid token", "sent": self.headers.get("Authorization")}, None
        match self.command, path:
            case "POST", "/charges":
                status, answer = service.once(key, body, lambda: service.charge(key, json.loads(body)))
            case "POST", "/refunds":
                undoes = self.headers.get("Saga-Undoes")
                status, answer = service.once(key, body, lambda: service.refund(undoes, json.loads(body)))
            case "GET", "/charges":
                wanted = query["key"][0]
                charges = [charge for charge in service.charges if charge["key"] == wanted]
                status, answer = (200, charges[0]) if charges else (404, {"error": "no such charge"})
            case _, "/echo":
                names = {name.lower(): value for name, value in self.headers.items()}
                sent = {"method": self.command, "path": self.path, "body": body, "headers": names}
                return 200, sent, {"set-cookie": "session=cookie-monster", "x-answer": "yes"}
            case _:
                status, answer = 404, {"error": "no such resource"}
        return status, answer, None

    def valid(self) -> list[str]:
        # Only the newest issued token is good: the older ones have been revoked.
        return self.service.tokens[-1:] if self.service.token == "oauth2" else [self.service.token or ""]

    def issue_token(self, body: str) -> tuple[int, Any]:
        form = {name: values[0] for name, values in parse_qs(body).items()}
        basic = "Basic " + base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        in_body = (form.get("client_id"), form.get("client_secret")) == (CLIENT_ID, CLIENT_SECRET)
        if form.get("grant_type") != "client_credentials" or not (
            in_body or self.headers.get("Authorization") == basic
        ):
            return 401, {"error": "invalid_client", "echo": body}
        self.service.tokens.append(f"token-number-{len(self.service.tokens) + 1}")
        return 200, {"access_token": self.service.tokens[-1], "token_type": "Bearer", "expires_in": 3600}

    def answer(self, status: int, answer: Any, headers: dict[str, str] | None = None) -> None:
        content = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "text/plain" if isinstance(answer, str) else "application/json")
        self.send_header("content-length", str(len(content)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def drop(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are recorded in the ledger, not printed."""


class PaymentServer:
    """The service as a process, for tests. Use as a context manager; ``url`` is its base address."""

    def __init__(self, *options: str, scheme: str = "http", context: ssl.SSLContext | None = None) -> None:
        self._options, self._scheme, self._context = options, scheme, context
        self.process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> PaymentServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> PaymentServer:
        """Start the process and wait until it listens."""
        command = [sys.executable, os.fspath(__file__), *self._options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        port = self.process.stdout.readline().strip()
        if not port.isdecimal():
            raise RuntimeError(f"the payment service did not start (exit code {self.process.wait()})")
        self.url = f"{self._scheme}://127.0.0.1:{port}"
        return self

    def stop(self) -> None:
        """End the process, as SIGKILL does: nothing of it answers any more."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None

    def faults(self, *faults: dict[str, Any]) -> None:
        """Set the faults of the next requests, in order: ``status``, ``drop``, ``delay_before``, ``cut`` …"""
        self._ask("/_faults", "PUT", faults)

    def ledger(self) -> dict[str, Any]:
        """The charges, refunds and requests that really happened."""
        return self._ask("/_ledger")

    def _ask(self, path: str, method: str = "GET", body: Any = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, content, method=method)
        with urllib.request.urlopen(request, context=self._context, timeout=10) as answer:
            return json.load(answer)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ignore-keys", action="store_true")
    parser.add_argument("--token", help="the bearer token to ask for; `oauth2`: the newest one of /token")
    for name in ("--cert", "--key", "--client-ca"):
        parser.add_argument(name)
    options = parser.parse_args()
    Handler.service = Service(ignore_keys=options.ignore_keys, token=options.token)
    server = ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
    server.daemon_threads = True
    if options.cert:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(options.cert, options.key)
        if options.client_ca:
            context.load_verify_locations(options.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        server.socket = context.wrap_socket(server.socket, server_side=True)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
