"""The shop's web site, as far as sagas tell it something: a receiver of signed notifications that is down for a while.

Each notification is refused at its first attempts, as by a site that is down, and accepted from then on. What is not
signed with the secret that both sides know is turned away.
"""

from __future__ import annotations

import base64
import secrets
import threading
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from saga_workers.devstack.dev_folder import write_atomically

SHOPFRONT_CONNECTION = "shopfront"

REFUSED_ATTEMPTS = 2
"""So many attempts of each notification find the site down."""


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    """One event at the receiver: how often it was sent here, whether it was accepted."""

    attempts: int
    accepted: bool


class Shopfront:
    """Listens in a thread of its own until it is closed."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._received: dict[str, ReceivedEvent] = {}
        self._thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="shopfront", daemon=True)

    @property
    def received(self) -> dict[str, ReceivedEvent]:
        """By event id."""
        with self._lock:
            return dict(self._received)

    def start(self) -> Shopfront:
        self._thread.start()
        return self

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def respond(self, event: str) -> HTTPStatus:
        """The answer of the site to an event whose signature is right."""
        with self._lock:
            attempts = self._received[event].attempts + 1 if event in self._received else 1
            self._received[event] = ReceivedEvent(attempts, accepted=attempts > REFUSED_ATTEMPTS)
            return HTTPStatus.NO_CONTENT if attempts > REFUSED_ATTEMPTS else HTTPStatus.SERVICE_UNAVAILABLE


def open_shopfront(url: str, secret: str) -> Shopfront | None:
    """Listen at ``url``, http with host and port; None: somebody else does."""
    where = urlsplit(url)
    try:
        server = ThreadingHTTPServer((where.hostname or "127.0.0.1", where.port or 80), BaseHTTPRequestHandler)
    except OSError:
        return None
    shopfront = Shopfront(server)
    webhook = Webhook(secret)

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            try:
                webhook.verify(body, headers)  # before anything of it is believed
            except WebhookVerificationError:
                status = HTTPStatus.UNAUTHORIZED
            else:
                status = shopfront.respond(headers["webhook-id"])
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: this terminal shows the output of the demo."""

    server.RequestHandlerClass = Handler
    return shopfront.start()


def shared_secret(file: Path) -> str:
    """The secret that both sides know; made when there is none yet."""
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}\n")
    return file.read_text(encoding="utf-8").strip()
