"""Pauses of a connection or of a saga's name: the commands, and the chunks of bulk workflows that wait."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from saga_activities import standing_pauses
from saga_activities.ledger.pauses import begin_pause, end_pause
from saga_workers.batch.batch_control import cancel_members
from saga_workers.views.held_counts import count_held
from saga_workers.views.saga_list import SagaFilter, query_sagas
from saga_workers.worker.worker_metrics import SagaGauges
from sagas.protocol.standing_pause import StandingPause
from sagas.settings.connections import async_url
from tests.helpers.waiting import until
from tests.integration.bulk.conftest import Bank
from tests.integration.bulk.test_bulk_execution import transfer
from tests.integration.bulk.test_views_and_actions import start_bulk, wait_until
from tests.integration.cli.conftest import CommandLine


async def test_chunks_wait_without_attempts(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing_pauses, "MAX_AGE", 0.0)
    bank.open_accounts(200)
    engine = create_async_engine(async_url(bank.url, bank.project.settings.root))
    assert await begin_pause(engine, "connection", "bank", who="mia", reason="a move")
    bulk = await start_bulk(bank, "transfer", [transfer(number) for number in range(1, 51)])

    async def sizes() -> list[int]:
        """The bytes of the requests of all chunks, the largest of which has the calls of all sagas."""
        events = (await bulk.fetch_history()).events
        scheduled = [event.activity_task_scheduled_event_attributes for event in events]
        return [each.input.ByteSize() for each in scheduled if each.activity_type.name == "saga.chunk"]

    async def asked_thrice() -> bool:
        return len(await sizes()) >= 4

    await until(asked_thrice)
    first, *others = await sizes()
    assert max(others) < first / 5  # one call asks, not all of them
    view = await bank.client.view("t-7")
    assert view.paused is not None
    assert (view.state, view.paused.name, view.paused.held) == ("RUNNING", "bank", ("debit",))
    own = SagaFilter(task_queue=bank.client.project.settings.temporal.task_queue)
    held = await count_held(bank.client.temporal, own, ["connection=bank"])
    assert (held.by_order["connection=bank"], held.is_complete) == (50, True), "of one bulk workflow"
    listed = [view async for view in query_sagas(bank.client.locator, own, limit=3)]
    assert ["paused with the connection bank by mia since" in (view.pause_text or "") for view in listed] == [True] * 3
    assert await cancel_members(bank.client.locator, ["t-7"], {"reason": "enough", "who": "mia"}) == {"t-7": "accepted"}
    await wait_until(bank, "t-7", "COMPENSATED")
    assert set(bank.balances().values()) == {100}
    assert await end_pause(engine, "connection", "bank")
    await bulk.result()
    await engine.dispose()
    states = bank.states()
    assert states.pop("t-7") == "COMPENSATED"
    assert (len(states), set(states.values())) == (49, {"COMPLETED"})
    step = (await bank.client.view("t-8")).steps[0]
    assert (step.state, step.attempts) == ("DONE", 1)


async def test_a_pause_is_ordered_shown_and_ended(bank: Bank, capsys: pytest.CaptureFixture[str]) -> None:
    bank.open_accounts(200)
    cli = CommandLine(bank.project.settings.root, capsys, bank.client)
    paused = await cli.saga("pause", "--connection", "bank", "--reason", "it is moved", "--as", "anna")
    assert paused.code == 0, paused
    assert paused.out.startswith("the connection bank is paused by anna since ")
    assert paused.out.endswith(" because: it is moved\nsaga resume --connection bank    ends it\n")
    again = await cli.saga("--json", "pause", "--connection", "bank", "--as", "ben")
    assert (again.json["response"], again.json["who"]) == ("already paused", "anna")
    run = await bank.client.start("transfer", transfer(97))
    await bank.client.start("transfer", transfer(98))

    async def waits() -> bool:
        return "paused" in (await cli.saga("--json", "show", run.id)).json

    await until(waits)
    shown = (await cli.saga("show", run.id)).out
    assert "paused with the connection bank by anna since" in shown
    assert "it is moved; held back: debit" in shown
    assert "saga resume --connection bank    lets it go on" in shown
    refused = await cli.saga("resume", run.id)
    assert refused.code == 9
    assert "saga resume --connection bank ends it" in refused.err

    async def listed() -> bool:
        stuck = await cli.saga("--json", "list", "--stuck")
        return "; 2 sagas wait for it" in stuck.err and "saga resume --connection bank" in stuck.json[0]["stuck"][0]

    await until(listed)
    stuck = await cli.saga("list", "--stuck")
    assert (stuck.out.count("paused with the connection bank"), stuck.out.count("    all 2: ")) == (1, 1), stuck
    assert "; 2 sagas wait for it" in (await cli.saga("list", "--stuck", "--limit", "1")).err, "more than are listed"
    assert "because: it is moved; 2 sagas wait for it" in (await cli.saga("report", "--since", "1h")).out
    gauges = SagaGauges(bank.client.temporal, dict, bank.client.locator.ledger.pauses)
    await gauges.refresh()
    [metric] = [metric for metric in gauges.collect() if metric.name == "saga_paused_sagas"]
    counts = {tuple(sample.labels.values()): sample.value for sample in metric.samples}
    assert counts["connection", "bank"] == 2
    checks = (await cli.saga("--json", "doctor")).json
    [check] = [check for check in checks if check["check"] == "pauses"]
    assert (check["ok"], check["help"]) == (False, "saga resume --connection bank")
    assert check["message"].endswith("because: it is moved; 2 sagas wait for it")
    resumed = await cli.saga("--json", "resume", "--connection", "bank")
    assert (resumed.code, resumed.json["response"]) == (0, "resumed")
    assert (await cli.saga("watch", run.id)).code == 0
    late = await cli.saga("resume", "--connection", "bank")
    assert (late.code, "the connection bank is not paused" in late.err) == (9, True)


async def test_a_pause_needs_one_known_name(bank: Bank, capsys: pytest.CaptureFixture[str]) -> None:
    cli = CommandLine(bank.project.settings.root, capsys, bank.client)
    for words, told in (
        (("--connection", "bnak"), "did you mean bank?"),
        (("--saga", "transfr"), "transfer"),
        (("--saga", "transfer", "--connection", "bank"), "give either"),
        (("--saga", "transfer", "--reason", "x" * 1001), "may have 1000"),
        ((), "give either"),
    ):
        answer = await cli.saga("pause", *words)
        assert (answer.code, told in answer.err) == (2, True), answer
    assert bank.query("select * from saga_pause") == []


async def test_a_project_without_a_ledger_says_what_it_needs(
    bank: Bank, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = (bank.project.settings.root / "saga.toml").read_text()
    (tmp_path / "saga.toml").write_text(settings.replace('[ledger]\nconnection = "bank"\n', ""))
    cli = CommandLine(tmp_path, capsys, bank.client)
    for verb in ("pause", "resume"):
        answer = await cli.saga(verb, "--connection", "bank")
        assert (answer.code, "needs a ledger" in answer.err) == (2, True), answer


async def test_the_metric_has_each_pause(bank: Bank) -> None:
    pauses = [StandingPause("connection", "bank", "2026-03-01T09:00:00Z", "mia")]

    async def read() -> list[StandingPause]:
        return pauses

    gauges = SagaGauges(bank.client.temporal, dict, read)
    await gauges.refresh()
    [metric] = [metric for metric in gauges.collect() if metric.name == "saga_paused"]
    assert [(sample.labels, sample.value) for sample in metric.samples] == [({"kind": "connection", "name": "bank"}, 1)]
