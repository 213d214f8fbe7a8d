"""One mismatch of each class is planted among a few sagas; each is found under its name, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from saga_spark.reconcile.comparison_database import open_comparison
from saga_spark.reconcile.extracts import GUARD_SCHEMA, OUTBOX_SCHEMA, ParquetRowWriter, SagaExport, effect_schema
from saga_spark.reconcile.findings import Finding
from saga_spark.reconcile.saga_reconciliation import find_mismatches
from saga_spark.reconcile.topic_extract import NEVER, RECORD_SCHEMA, RECORDS_FILE, TopicsRead
from sagas.protocol.saga_view import SagaView
from sagas.settings.reconcile import EffectTable

NOW = 1_790_000_000.0
HORIZON = NOW - 86_400

ORDERS = EffectTable(connection="shop", table="orders", key=("order_id",), saga_id="saga_id", sagas=("checkout",),
                     step="place", amounts={"total": "total"})  # fmt: skip
CHARGES = EffectTable(connection="shop", table="charge", key=("id",), guard_key="id", step="charge", time="made_at")
LINES = EffectTable(connection="shop", table="lines", key=("line_id",), result={"batch.id": "batch"}, step="pack",
                many=True)  # fmt: skip
HOLDS = EffectTable(connection="shop", table="reservation", key=("sku",), saga_id="saga_id", step="reserve", holds=True)
NOTES = EffectTable(connection="shop", table="notes", key=("note",), saga_id="saga_id", sagas=("checkout",))
ALL = (ORDERS, CHARGES, LINES, HOLDS, NOTES)


class ShopSystem:
    """Twelve checkouts, every third compensated, all in order; a test spoils something before ``check``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stories: dict[str, dict[str, Any]] = {}
        self.guard: dict[tuple[str, str, int], dict[str, Any]] = {}
        self.rows: dict[str, list[dict[str, Any]]] = {table.name: [] for table in ALL}
        self.events: list[tuple[Any, ...]] = []
        self.records: list[tuple[Any, ...]] = []
        for number in range(12):
            self.saga(f"c-{number}", "COMPENSATED" if number % 3 == 0 else "COMPLETED", number)

    def saga(self, id: str, state: str, number: int) -> None:
        done = state == "COMPLETED"
        steps = []
        for step in ("reserve#0", "reserve#1", "charge", "place", "pack"):
            undone = not done
            steps.append(entry(step, "COMPENSATED" if undone else "DONE"))
            result = {"place": {"total": f"{number}.50"}, "pack": {"batch": {"id": number}}}.get(step, {})
            self.guard[(id, step, 1)] = {"reason": "do", "undone": undone, "result": json.dumps(result)}
        self.stories[id] = story(id, state, steps)
        if done:
            self.rows["orders"].append({"bound": id, "row": row(order_id=number), "a0": f"{number}.5"})
            self.rows["charge"].append({"bound": f"{id}/charge", "row": row(id=f"{id}/charge"), "time": NOW - 50})
            self.rows["lines"] += [{"bound": str(number), "row": row(line_id=f"{number}-{at}")} for at in (1, 2)]
            self.rows["notes"].append({"bound": id, "row": row(note=number)})
            self.events.append(("shop", id, "place", 1, f"e-{number}", "orders", "NEW", NOW - 50, None))

    def write(self) -> None:
        with ParquetRowWriter(self.folder / RECORDS_FILE, RECORD_SCHEMA) as out:
            for record in self.records:
                out.add(*record)
        with SagaExport(self.folder) as journal:
            for document in self.stories.values():
                journal.add(SagaView.from_json(document))
        with ParquetRowWriter(self.folder / "guard" / "shop.parquet", GUARD_SCHEMA) as out:
            for (saga_id, step, generation), document in self.guard.items():
                values = (
                    document["reason"],
                    document["undone"],
                    document.get("created_at", NOW - 60),
                    document["result"],
                )
                out.add(document.get("connection", "shop"), saga_id, step, generation, *values)
        with ParquetRowWriter(self.folder / "outbox" / "shop.parquet", OUTBOX_SCHEMA) as out:
            for event in self.events:
                out.add(*event, False)
        for document in ALL:
            schema = effect_schema(len(document.amounts))
            with ParquetRowWriter(self.folder / "effects" / f"{document.name}.parquet", schema) as out:
                for line in self.rows[document.name]:
                    out.add(*(line.get(name) for name in schema.names))

    def check(self, since: float | None = None, effects: tuple[EffectTable, ...] = ALL) -> list[Finding]:
        self.write()
        topics = TopicsRead(0, 0, NOW - 5000, {"orders": NOW - 3000, "last-only": NEVER})
        with open_comparison(self.folder, since, HORIZON, lambda connection: None) as database:
            find_mismatches(database, effects, topics)
            findings = list(database.findings(100))
            assert sum(database.counts().values()) == len(findings)
        return findings


def entry(id: str, state: str, **more: Any) -> dict[str, Any]:
    base = {"id": id, "step": id, "uses": "work", "state": state, "generation": 1, "guarantee": "guarded"}
    return {**base, "started_at": "2026-09-21T00:00:00Z", **more}


LEFT = {"step": "a", "kind": "effect_stays"}


def story(id: str, state: str, steps: list[Any], **more: Any) -> dict[str, Any]:
    moment = "2026-09-21T14:12:00Z"
    over = None if state in ("RUNNING", "PARKED") else moment
    return {
        "id": id,
        "saga": "checkout",
        "state": state,
        "started_at": moment,
        "ended_at": over,
        "steps": steps,
        **more,
    }


def publish(
    system: ShopSystem, event: str, saga: str, *places: int, status: str = "PUBLISHED", ago: float = 40
) -> None:
    """An event of the step `place`, and its records at the given offsets of its topic."""
    system.events.append(("shop", saga, "place", 1, event, "orders", status, NOW - 50, NOW - ago))
    seen(system, event, saga, *places)


def seen(system: ShopSystem, event: str, saga: str, *places: int, ago: float = 41, is_hidden: bool = False) -> None:
    system.records += [("shop", event, "orders", 0, place, saga, "place", NOW - ago, is_hidden) for place in places]


def row(**values: Any) -> str:
    return json.dumps(values)


def classes_of(findings: Iterable[Finding]) -> set[tuple[Any, ...]]:
    return {(finding.kind, finding.saga_id, finding.step, finding.place) for finding in findings}


@pytest.fixture
def system(tmp_path: Path) -> ShopSystem:
    return ShopSystem(tmp_path)


def add_what_is_no_finding(system: ShopSystem) -> None:
    """Add rows that look like a mismatch and are none: open sagas, old rows, events that are not marked yet."""
    system.stories["open"] = story("open", "RUNNING", [])  # its guard rows come and go
    system.guard[("open", "place", 1)] = {"reason": "do", "undone": False, "result": '{"total": "1"}'}
    system.rows["orders"].append({"bound": "open", "row": row(order_id=99), "a0": "1.00"})
    system.rows["reservation"].append({"bound": "open", "row": row(sku="s")})
    system.guard[("ancient", "x", 1)] = {"reason": "do", "undone": False, "result": None, "created_at": HORIZON - 1}
    system.guard[("c-1", "sealed", 1)] = {"reason": "undo", "undone": True, "result": None}
    # Notifications: one of an undone saga, one with an event.
    notified = {"reason": "do", "undone": False, "result": None}
    system.guard |= {("c-0", "notify-0-compensated", 1): notified, ("c-1", "notify-1-parked-2", 1): notified}
    system.events.append(("shop", "c-1", "notify-1-parked-2", 1, "told", "news", "NEW", NOW - 50, None))
    publish(system, "q-1", "c-1", 4)
    publish(system, "q-2", "c-2", 5, status="NEW")  # not marked yet
    publish(system, "q-3", "c-4", ago=3001)  # the topic no longer has it
    system.events.append(("shop", "c-1", "place", 1, "q-4", "last-only", "PUBLISHED", NOW - 50, NOW - 40))
    seen(system, "q-5", "c-1", 6, ago=5001)  # the outbox no longer has it
    answer = {"id": "ask", "state": "DONE", "guarantee": "participant"}
    system.stories["c-1"]["steps"].append(entry(**answer))
    system.events.append(("shop", "c-1", "ask", 1, "q-6", "commands", "NEW", NOW - 50, None))
    system.events.append(("shop", "", "consumer/finance", 1, "q-7", "replies", "NEW", NOW - 50, None))
    system.events.append(("shop", "open", "place", 1, "q-8", "orders", "HELD", NOW - 50, None))
    system.stories["known"] = story("known", "RESIDUE", [entry("a", "PARKED")], residue=[LEFT])
    system.guard[("known", "a", 1)] = {"reason": "do", "undone": False, "result": None}
    system.events.append(("shop", "known", "a", 1, "q-9", "orders", "HELD", NOW - 50, None))
    unreached = {**entry("a", "PENDING"), "started_at": None, "attempts": 0}  # in a run of a reset after the decision
    system.stories["repeated"] = story("repeated", "RESIDUE", [unreached], residue=[LEFT])
    system.guard[("repeated", "a", 1)] = {"reason": "do", "undone": False, "result": None}


def test_a_consistent_system_has_no_findings(system: ShopSystem) -> None:
    add_what_is_no_finding(system)
    assert system.check() == []


def corrupt_topics(system: ShopSystem) -> set[tuple[Any, ...]]:
    """The outbox against the topics."""
    publish(system, "p-1", "c-1")
    publish(system, "p-2", "c-2", 7, 8)
    publish(system, "p-3", "c-5", 9, status="HELD")
    publish(system, "p-4", "c-7", 10)
    seen(system, "stranger", "c-8", 11)
    seen(system, "nobody's", "", 12)
    publish(system, "p-5", "c-11")
    seen(system, "p-5", "c-11", 13, is_hidden=True)
    publish(system, "p-6", "c-11", 14)  # what is hidden of it may be of an aborted transaction
    seen(system, "p-6", "c-11", 15, is_hidden=True)
    for saga, event in (("c-0", "h-1"), ("c-10", "h-2")):  # one was compensated, one is past its commit point
        system.events.append(("shop", saga, "place", 1, event, "orders", "HELD", NOW - 50, None))
    return {
        ("event_held", "c-0", "place", "shop.saga_outbox"),
        ("event_held", "c-10", "place", "shop.saga_outbox"),
        ("event_missing", "c-1", "place", "shop.saga_outbox"),
        ("event_hidden", "c-11", "place", "shop.saga_outbox"),
        ("event_published_twice", "c-2", "place", "shop.saga_outbox"),
        ("event_unclaimed", "c-5", "place", "shop.saga_outbox"),
        ("event_held", "c-5", "place", "shop.saga_outbox"),
        ("event_unclaimed", "c-8", "place", "shop.saga_outbox"),
        ("event_unclaimed", None, "place", "shop.saga_outbox"),
    }


def corrupt_guard(system: ShopSystem) -> set[tuple[Any, ...]]:
    """The sagas against the guard."""
    system.guard[("c-1", "extra", 1)] = {"reason": "do", "undone": False, "result": None}
    system.guard[("ghost", "charge#0", 1)] = {"reason": "do", "undone": False, "result": None}
    del system.guard[("c-2", "reserve#1", 1)]
    system.guard[("c-3", "reserve#0", 1)]["undone"] = False
    system.guard[("c-4", "reserve#0", 2)] = {"reason": "do", "undone": False, "result": None}
    system.stories["dead"] = story("dead", "TERMINATED", [])
    system.guard[("dead", "other", 1)] = {"reason": "do", "undone": False, "result": None}
    system.stories["known"] = story("known", "RESIDUE", [entry("a", "PARKED")], residue=[LEFT])
    system.guard[("known", "a", 1)] = {"reason": "do", "undone": False, "result": None}
    return {
        ("effect_without_saga", "c-1", "extra", "shop"),
        ("effect_without_saga", "ghost", "charge#0", "shop"),
        ("saga_without_effect", "c-2", "reserve#1", None),
        ("effect_not_undone", "c-3", "reserve#0", "shop"),
        ("effect_applied_twice", "c-4", "reserve#0", "shop"),
        ("open_effects", "dead", "other", "shop"),
    }


def corrupt_tables(system: ShopSystem) -> set[tuple[Any, ...]]:
    """The guard against the tables."""
    orders = system.rows["orders"]
    orders[:] = [order for order in orders if order["bound"] != "c-1"]
    orders.append({"bound": None, "row": row(order_id=77), "a0": "1"})
    orders.append({"bound": "c-0", "row": row(order_id=78), "a0": "0.50"})
    orders.append({"bound": "c-2", "row": row(order_id=79), "a0": "2.50"})
    next(order for order in orders if order["bound"] == "c-4")["a0"] = "4.51"
    system.rows["charge"].append({"bound": "ghost/charge", "row": row(id="g"), "time": NOW - 50})
    system.rows["charge"].append({"bound": "old/charge", "row": row(id="o"), "time": HORIZON - 50})
    system.rows["lines"].append({"bound": "9", "row": row(line_id="9-1")})
    system.rows["lines"][:] = [line for line in system.rows["lines"] if line["bound"] != "5"]
    system.rows["reservation"].append({"bound": "c-7", "row": row(sku="a")})
    system.rows["reservation"].append({"bound": "who", "row": row(sku="b")})
    system.rows["notes"].append({"bound": "c-6", "row": row(note="left")})
    system.rows["notes"][:] = [note for note in system.rows["notes"] if note["bound"] != "c-8"]
    system.events.append(("shop", "c-10", "never", 1, "e", "orders", "NEW", NOW - 50, None))
    return {
        ("saga_without_effect", "c-1", "place", "shop.orders"),
        ("effect_without_saga", None, None, "shop.orders"),
        ("effect_not_undone", "c-0", "place", "shop.orders"),
        ("effect_applied_twice", "c-2", "place", "shop.orders"),
        ("amounts_differ", "c-4", "place", "shop.orders"),
        ("effect_without_saga", "ghost", None, "shop.charge"),
        ("effect_not_undone", "c-9", "pack", "shop.lines"),
        ("saga_without_effect", "c-5", "pack", "shop.lines"),
        ("reservation_unowned", "c-7", "reserve#0", "shop.reservation"),
        ("reservation_unowned", "who", None, "shop.reservation"),
        ("effect_not_undone", "c-6", None, "shop.notes"),
        ("saga_without_effect", "c-8", None, "shop.notes"),
        ("event_without_effect", "c-10", "never", "shop.saga_outbox"),
    }


def test_each_class_is_found(system: ShopSystem) -> None:
    add_what_is_no_finding(system)
    wanted = corrupt_guard(system) | corrupt_tables(system) | corrupt_topics(system)
    findings = system.check()
    assert classes_of(findings) == wanted
    assert len(findings) == len(wanted)
    by_saga = {finding.saga_id: finding for finding in findings if finding.place == "shop.orders"}
    assert by_saga["c-4"].details["total"] == "4.51"
    assert by_saga["c-4"].details["expected.total"] == "4.5"
    assert by_saga["c-0"].row == {"order_id": 78}


def test_a_window_ignores_earlier_data(system: ShopSystem) -> None:
    corrupt_tables(system)
    publish(system, "p-1", "c-1", ago=2000)
    system.events.append(("shop", "c-2", "never", 1, "h-0", "orders", "HELD", NOW - 4000, None))
    system.events.append(("shop", "c-2", "place", 1, "h-1", "orders", "HELD", NOW - 4000, None))  # c-2 has ended in it
    system.rows["charge"].append({"bound": "early/charge", "row": row(id="e"), "time": NOW - 4000})
    near = ORDERS.model_copy(update={"tolerance": Decimal("0.01")})
    lines = system.check(since=NOW - 1800, effects=(CHARGES, near))
    assert "c-4" not in {finding.saga_id for finding in lines}
    classes = classes_of(finding for finding in lines if finding.place != "shop.orders")
    assert classes == {
        ("event_without_effect", "c-10", "never", "shop.saga_outbox"),
        ("event_held", "c-2", "place", "shop.saga_outbox"),
        ("effect_without_saga", "ghost", None, "shop.charge"),
    }


def test_duckdb_writes_no_progress_into_the_output(tmp_path: Path) -> None:
    with open_comparison(tmp_path, None, HORIZON, lambda connection: None) as database:
        assert database.run("SELECT current_setting('enable_progress_bar')") == [(False,)]
