"""Pages of the console about what a test on servers rarely has: batches, pauses, circuit breakers, lags, events."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from html import unescape
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from saga_workers.batch.batch_view import BatchEntry, BatchView, FailureGroup
from saga_workers.location.traces import RecordedEffect
from saga_workers.relay.saga_events import OutboxEvent
from saga_workers.serve.api_tokens import Caller, TokenBucket
from saga_workers.serve.console import board as board_page
from saga_workers.serve.console import inbox as inbox_page
from saga_workers.serve.console.board import BoardPage, GivenUp, Holds, Messaging, PausedSchedule, Schedules
from saga_workers.serve.console.inbox import InboxPage
from saga_workers.serve.console.recent import Recent
from saga_workers.serve.console.sessions import Session, Sessions
from saga_workers.serve.console.sign_in import next_page
from saga_workers.serve.console.templates import render
from saga_workers.serve.console.visitors import Visitor
from saga_workers.serve.limits import MAX_SESSIONS_OF_TOKEN, SESSION_SECONDS
from saga_workers.views.parked import ParkedList, ParkedRow
from saga_workers.views.saga_counts import SagaCounts
from sagas.protocol.batch_record import BatchRecord
from sagas.protocol.saga_view import SagaView
from sagas.protocol.standing_pause import StandingPause

VISITOR = Visitor(Caller("ada", frozenset({"read"}), TokenBucket(1)), Session("ada", "Bearer a", 1.0))
OPERATOR = Visitor(Caller("bob", frozenset({"read", "operate"}), TokenBucket(1)), Session("bob", "Bearer b", 1.0))
REQUEST = Request({"type": "http", "query_string": b""})
SCRIPT = "<script>alert(1)</script>"
TOKEN = "a-token-of-24-characters"
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
    others = {"holds": Holds(), "schedules": Schedules(), "workers": 2, "no_worker": None, "messaging": Messaging()}
    others["given_up"] = GivenUp()
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
    text = board(schedules=Schedules([PausedSchedule("water", "paused by kim: <rain>")]))
    assert "the schedule of water is paused by kim: <rain>" in text
    assert "<code>saga schedule resume water</code>" in text
    assert "Nothing is paused" not in text
    for unknown in (None, Schedules(problem="the schedules cannot be read")):
        assert "Nothing is paused" not in board(schedules=unknown)
    assert "Nothing is paused" in board()
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
    for unknown in ({"counts": None}, {"holds": None}, {"messaging": None}, {"given_up": None}):
        assert "Open the page again in a moment" in board(**unknown)


def test_the_board_shows_what_was_given_up() -> None:
    assert "sends and reads no messages" in board()
    text = board(given_up=GivenUp([("order-7", f"its event is not served: {SCRIPT}")]))
    assert '✖</span> Given up: <a href="/console/sagas/order-7">order-7</a> its event is not served: ' in text
    assert "sends and reads no messages" not in text
    text = board(given_up=GivenUp(problem="what was given up cannot be read: no answer"))
    assert "What was given up cannot be read: no answer." in text
    assert "sends and reads no messages" not in text


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
        RecordedEffect("shop", "pay", 2, True, False, None, 1.0, confirmed=True),
        RecordedEffect("shop", "book", 1, False, True, None, 1.0),
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


def served_project() -> Any:
    """The parts of a project that the board and the inbox read, with an empty ledger."""

    async def nothing() -> list[Any]:
        return []

    async def all_of(sagas: Iterable[tuple[str, str]]) -> set[str]:
        return {saga_id for _, saga_id in sagas}

    locator = SimpleNamespace(temporal=None, ledger=SimpleNamespace(pauses=nothing, open_breakers=nothing))
    locator.within_temporal = lambda: locator
    return SimpleNamespace(locator=locator, task_queue="shop", project=None, shown=SimpleNamespace(among=all_of))


@pytest.mark.parametrize(("workers", "warns"), [(0, True), (2, False), (None, False)])
async def test_only_a_counted_absence_of_workers_is_reported(
    monkeypatch: pytest.MonkeyPatch, workers: int | None, warns: bool
) -> None:
    async def count(*_: Any) -> int:
        if workers is None:
            await asyncio.Event().wait()
        return workers or 0

    async def never(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    others = dict.fromkeys(("count_sagas", "count_held", "read_parked", "paused_notes", "read_given_up"), never)
    for name, value in {"count_pollers": count, "_WAIT": 0.01, **others}.items():
        monkeypatch.setattr(board_page, name, value)
    monkeypatch.setattr(board_page, "uses_kafka", lambda _: False)
    shown = await BoardPage(served_project()).show(REQUEST, VISITOR)
    assert ("until a worker is started" in bytes(shown.body).decode()) == warns


async def test_each_cause_in_the_inbox_leads_to_its_own_item(monkeypatch: pytest.MonkeyPatch) -> None:
    causes = {"reserve#1": "closed on Sundays", "reserve#2": "no such room"}
    rows = tuple(
        ParkedRow("order", "order-1", step, "do", why, "2026-03-01T10:00:00Z", ("retry",), ("saga resolve",))
        for step, why in causes.items()
    )

    async def read(*_: Any, **__: Any) -> ParkedList:
        return ParkedList(rows, {})

    monkeypatch.setattr(inbox_page, "read_parked", read)
    shown = await InboxPage(served_project()).show(REQUEST, OPERATOR)
    cards = bytes(shown.body).decode().split("<article")[1:]
    assert len(cards) == len(causes)
    for step, why in causes.items():
        [card] = [card for card in cards if why in card]
        assert f"step={step.replace('#', '%23')}&" in unescape(card)


async def test_a_late_value_is_not_shown_as_a_recent_one() -> None:
    now, answers, may_answer = [0.0], iter([1, 2, OSError("late"), 3]), asyncio.Event()
    tasks: set[asyncio.Task[Any]] = set()

    async def read() -> int:
        if (task := asyncio.current_task()) is not None:
            tasks.add(task)
        await may_answer.wait()
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    recent = Recent(read, 3.0, lambda: now[0])

    async def answer_late(wait: float = 0.0) -> None:
        """Ask for a value whose reading ends when nobody waits for it any more."""
        may_answer.clear()
        await recent.get(wait)
        may_answer.set()
        await asyncio.wait(tasks)

    await answer_late()
    assert await recent.get(0.1) == 1, "it was read just now"
    now[0] += 3600
    assert await recent.get(0.1) == 2
    now[0] += 3600
    await answer_late()
    assert await recent.get(0.1) == 3, "an error of an hour ago is not raised"
    may_answer.clear()
    now[0] += 4
    assert await recent.get(0.0) == 3, "while it is read again"
    now[0] += 3600
    assert await recent.get(0.0) is None, "nobody knows what holds now"


@pytest.mark.parametrize(
    "asked",
    ["//evil.example", "https://evil.example", "/sagas/a", "/consoles", "/console\\evil", "/console/\n", "", None,
     "/console//evil.example\\", "/console/../evil", "/console/%2e%2E/evil", "/console/a/..?b", "javascript:alert(1)"],
)  # fmt: skip
def test_the_sign_in_leads_to_the_console_only(asked: str | None) -> None:
    assert next_page(asked) == "/console"


def test_sessions_are_few_and_end() -> None:
    now = [0.0]
    sessions = Sessions(lambda: now[0])
    other = sessions.begin("other", "Bearer b")
    begun = [sessions.begin("staff", "Bearer a") for _ in range(MAX_SESSIONS_OF_TOKEN + 2)]
    assert [session for session in begun if sessions.find(session.id) is None] == begun[:2]
    assert sessions.find(other.id) is other, "a token does not end the sessions of another"
    now[0] = SESSION_SECONDS
    assert sessions.find(other.id) is None
    assert TOKEN not in repr(sessions.begin("staff", f"Bearer {TOKEN}"))
