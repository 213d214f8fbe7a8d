"""The customer's system: counts each event once, however often it is sent. `python receiver.py [PORT]`

It answers the first attempt of every event with 503, and every attempt about the order `nobody-home`.
GET / returns the events as JSON: its saga, and how many attempts there were.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

EVENTS: dict[str, dict[str, object]] = {}
"""By event id, which is the same in every attempt."""


class Receiver(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(200, EVENTS)

    def do_POST(self) -> None:
        event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        saga = event["data"]["id"]
        received = EVENTS.setdefault(event["id"], {"saga": saga, "attempts": 0, "accepted": False})
        received["attempts"] = attempts = int(str(received["attempts"])) + 1
        if attempts == 1 or saga == "notification-nobody-home":
            self._answer(503, {"error": "try again later"})
            return
        received["accepted"] = True
        self._answer(200, {})

    def _answer(self, status: int, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8795
    ThreadingHTTPServer(("127.0.0.1", port), Receiver).serve_forever()
