"""A stock and a wallet that are tried, confirmed and cancelled; a refusal is a 200. `python receiver.py [PORT]`

It keeps its promises about keys: `saga participant test microtx-order wallet` passes.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

FREE = {"lamp": 10, "money": 100}
TRIED: dict[str, tuple[dict, dict]] = {}  # by key: its arguments and its answer
STATES: dict[str, str] = {}  # by key: held, final, cancelled, refused
COUNTS = {"cancelled_refusals": 0}


def attempt(key: str, order: dict) -> tuple[int, dict]:
    if STATES.get(key) == "cancelled":
        return 422, {"error": "this key was cancelled"}
    if key in TRIED:
        first, answer = TRIED[key]
        return (200, answer) if first == order else (400, {"error": "this key was used with other arguments"})
    accepted = FREE[order["item"]] >= order["units"]
    FREE[order["item"]] -= order["units"] if accepted else 0
    STATES[key] = "held" if accepted else "refused"
    TRIED[key] = (order, {"accepted": accepted, "id": len(TRIED)})
    return 200, TRIED[key][1]


def cancel(key: str) -> tuple[int, dict]:
    state = STATES.get(key)
    if state == "final":
        return 422, {"error": "it is final"}
    if state == "held":
        order = TRIED[key][0]
        FREE[order["item"]] += order["units"]
    COUNTS["cancelled_refusals"] += state == "refused"
    STATES[key] = "refused" if state == "refused" else "cancelled"
    return 200, {}


def confirm(key: str) -> tuple[int, dict]:
    if STATES.get(key) not in ("held", "final"):
        return 422, {"error": "nothing is held"}
    STATES[key] = "final"
    return 200, {}


def totals(state: str) -> dict[str, int]:
    counted: dict[str, int] = {}
    for key, own in STATES.items():
        if own == state:
            order = TRIED[key][0]
            counted[order["item"]] = counted.get(order["item"], 0) + order["units"]
    return counted


class Services(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(200, {"final": totals("final"), "held": totals("held"), **COUNTS})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        match self.path.rpartition("/")[2]:
            case "try":
                self._answer(*attempt(self.headers["Idempotency-Key"], body))
            case "cancel":
                self._answer(*cancel(self.headers["Saga-Undoes"]))
            case "confirm":
                self._answer(*confirm(self.headers["Saga-Confirms"]))

    def _answer(self, status: int, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8796
    HTTPServer(("127.0.0.1", port), Services).serve_forever()
