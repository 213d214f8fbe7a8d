"""Pages of the console about what a test on servers rarely has: batches, pauses, circuit breakers, lags, events."""

from __future__ import annotations

from html import unescape
from typing import Any

from saga_workers.batch.batch_view import BatchEntry, BatchView, FailureGroup
from saga_workers.location.traces import GuardedEffect
from saga_workers.relay.saga_events import OutboxEvent
from saga_workers.serve.api_tokens import Caller, TokenBucket
from saga_workers.serve.console.board import Holds, Messaging
from saga_workers.serve.console.sessions import Session
from saga_workers.serve.console.templates import render
from saga_workers.serve.console.visitors import Visitor
from saga_workers.views.saga_counts import SagaCounts
from sagas.protocol.batch_record import BatchRecord
from sagas.protocol.saga_view import SagaView
from sagas.protocol.standing_pause import StandingPause

VISITOR = Visitor(Caller("ada", frozenset({"read"}), TokenBucket(1)), Session("ada", "Bearer a", 1.0))
SCRIPT = "<script>alert(1)</script>"
RECORD = BatchRecord(
    SCRIPT, "order", total=10, started=3, existing=1, refused=2, refusals=(f"line 7: {SCRIPT}",), seconds=2.0,
    state="PAUSED", by="bob",
)  # fmt: skip


def page(template: str, **values: Any) -> str:
    """The text of a page, which has no element of a value."""
    text = render(template, "A page", visitor=VISITOR, place="board", **values)
    assert "<script" not in text
    return " ".join(unescape(text).split())


def board(**values: Any) -> str:
    usual = {"counts": SagaCounts({"RUNNING": 10_000}, 5, 1), "states": [("RUNNING", 10_000)], "oldest": None}
    others = {"holds": Holds(), "workers": 2, "no_worker": None, "messaging": Messaging()}
    return page("board.html", **{**usual, **others, **values})


def test_the_board_shows_what_holds_sagas_back() -> None:
    at = "2026-03-01T10:00:00Z"
    pause = StandingPause("connection", SCRIPT, at, "ada", "stock is counted")
    breaker = StandingPause("circuit_breaker", "bank", at, "the circuit breaker")
    text = board(holds=Holds([pause], [breaker]))
    assert "10,000" in text
    assert "In the last hour 5 sagas started and 1 ended. 2 workers run them." in text
    assert f"the connection {SCRIPT} is paused by ada since {at} because: stock is counted" in text
    assert "the circuit breaker of the connection bank is open" in text
    assert "saga resume --connection bank" in text
    assert "The ledger does not answer." in board(holds=Holds(problem="the ledger does not answer"))
    assert "nothing goes on until a worker is started" in board(no_worker="no worker polls shop", workers=0)


def test_the_board_shows_what_waits_in_queues() -> None:
    waiting = {"connection": "shop", "new": 5, "oldest_seconds": 7.4, "held": 1, "refused": 0, "kafka_error": SCRIPT}
    outboxes = [waiting, {"connection": "bank", "error": "the database does not answer"}]
    readers = [(True, "orders is at most 3 events of baskets behind"), (False, "nobody reads returns")]
    text = board(messaging=Messaging(outboxes, readers))
    assert "5 wait to be published (the oldest for 7 s), 1 held until its saga cannot be undone any more" in text
    assert f'<small class="fail">{SCRIPT}</small>' in text
    assert "Outgoing events of bank: the database does not answer" in text
    assert "✔ Incoming: orders is at most 3 events of baskets behind" in text
    assert "Incoming: nobody reads returns" in text
    for unknown in ({"counts": None}, {"holds": None}, {"messaging": None}):
        assert "Open the page again in a moment" in board(**unknown)


def test_batches_show_how_far_they_are() -> None:
    listed = page("batches.html", entries=[BatchEntry(RECORD, "2026-03-01T10:00:00Z", None)], limit=50, is_full=True)
    assert '<progress max="10" value="6"' in listed
    assert "/console/batches/%3Cscript%3Ealert%281%29%3C%2Fscript%3E" in listed
    failure = FailureGroup("COMPENSATED", "rejected", "pay", SCRIPT, 2, "order-1")
    view = BatchView(SCRIPT, RECORD, {"COMPLETED": 2, "RUNNING": 1, "COMPENSATED": 2}, (failure,), 2)
    text = page("batch.html", view=view)
    assert "paused by bob · 3.0 rows per second" in text
    assert "10 rows: 3 started, 1 existed already, 2 refused, 4 not started yet." in text
    assert f"line 7: {SCRIPT}" in text
    assert f"2 × rejected at pay: {SCRIPT}" in text
    assert "/console/sagas/order-1" in text
    assert "Temporal has no record" in page("batch.html", view=BatchView("b", None, {"COMPLETED": 1}))


def test_the_databases_of_a_saga_show_effects_and_events() -> None:
    effects = [
        GuardedEffect("shop", "pay", 2, True, False, None, 1.0, confirmed=True),
        GuardedEffect("shop", "book", 1, False, True, None, 1.0),
    ]
    events = [OutboxEvent("shop", "0190", "orders", "pay", status, 1.0, SCRIPT) for status in ("HELD", "REFUSED")]
    view = SagaView(id="order-1", saga="order", state="RUNNING")
    text = page(
        "databases.html", view=view, effects=effects, omitted=3, holdings=["row locks on shop"], events=events,
        is_full=True, problem="the outbox cannot be read",
    )  # fmt: skip
    assert "✔ there, and confirmed" in text
    assert "its undo in another system is decided" in text
    assert "It holds row locks on shop: other sagas may wait for it." in text
    assert "waits for the point of no return of its saga" in text
    assert "refused by the broker" in text
    assert "The outbox cannot be read." in text
