"""The reason of an operator quotes no `x-sensitive` value of its saga where it is shown, logged or stored in clear."""

from __future__ import annotations

import contextlib
import json
import secrets
import uuid
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload

from saga_workers.client import Client
from sagas.errors import UsageError
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.forked_commands import run_command
from tests.helpers.local_worker import finished
from tests.helpers.processes import WorkerProcess
from tests.helpers.waiting import until
from tests.integration.trust.test_encrypted_values import project as encrypting_project
from tests.integration.trust.test_encrypted_values import shop, tables

__all__ = ["encrypting_project", "shop"]  # fixtures

ORDER = """saga: order
input: {type: object, properties: {card: {type: string, x-sensitive: true}, parcel: {type: string}}}
steps:
  - {id: pay, uses: cards.charge, with: {card: "${{ input.card }}"}, compensate: cards.refund}
  - {id: parcel, uses: saga, with: {name: delivery, input: {parcel: "${{ input.parcel }}"}}}
"""
DELIVERY = """saga: delivery
input: {type: object, properties: {parcel: {type: string}}}
steps: [{id: arrives, uses: wait, with: {signal: arrived}}]
"""


@pytest.fixture
def project(encrypting_project: Project, tmp_path: Path) -> Project:
    for name, text in {"order": ORDER, "delivery": DELIVERY}.items():
        (tmp_path / f"{name}.saga.yaml").write_text(text, encoding="utf-8")
    return Project(load_settings(config=str(tmp_path / "saga.toml")))


@pytest.fixture
def card() -> str:
    return f"4111{secrets.randbelow(10**12):012}"


async def start_order(client: Client, card: str) -> str:
    """The id of an order whose parcel is on its way."""
    saga_id = f"order-{uuid.uuid4()}"
    await client.start("order", {"card": card, "parcel": "p-1"}, id=saga_id)

    async def waits() -> bool:
        with contextlib.suppress(UsageError):  # it has not begun
            steps = (await client.show(f"{saga_id}/parcel"))["steps"]
            return bool(steps) and steps[0]["state"] == "RUNNING"
        return False

    await until(waits)
    return saga_id


def said(folder: Path, *words: str) -> str:
    """The output of a command."""
    done = run_command([*words], folder)
    return done.stdout + done.stderr


def without_payloads(message: Any) -> str:
    """The message as text, without what the codec encrypts."""
    copy = type(message)()
    copy.CopyFrom(message)
    _clear_payloads(copy)
    return str(copy)


def _clear_payloads(message: Any) -> None:
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for each in value if hasattr(value, "add") else [value]:
            if isinstance(each, Payload):
                each.Clear()
            else:
                _clear_payloads(each)


async def in_temporal(client: Client, *workflow_ids: str) -> str:
    """All that Temporal has of these runs in clear."""
    texts: list[str] = []
    for workflow_id in workflow_ids:
        handle = client.temporal.get_workflow_handle(workflow_id)
        texts += [without_payloads(event) for event in (await handle.fetch_history()).events]
        texts.append(without_payloads((await handle.describe()).raw_description))
    return "\n".join(texts)


async def test_the_reason_of_a_cancel_and_of_an_undo(project: Project, tmp_path: Path, shop: str, card: str) -> None:
    worker = WorkerProcess("worker", tmp_path)
    reason = f"card {card} stolen"
    with worker:
        async with await Client.connect(project) as client:
            cancelled, undone = await start_order(client, card), await start_order(client, card)
            await client.signal(f"{undone}/parcel", "arrived")
            assert (await finished(client, undone))["state"] == "COMPLETED"
            printed = {
                "cancel": said(tmp_path, "cancel", cancelled, "--reason", reason),
                "undo": said(tmp_path, "undo", undone, "--reason", reason, "--yes"),
            }
            assert (await finished(client, cancelled))["reason"]["message"] == "card ••• stolen"

            async def is_undone() -> bool:
                return (await client.show(undone))["state"] == "COMPENSATED"

            await until(is_undone)
            nested = await client.show(f"{cancelled}/parcel")
            assert nested["reason"]["message"].endswith("card ••• stolen"), nested
            ids = (cancelled, undone, f"{cancelled}/parcel", f"{undone}/parcel")
            await until(lambda: all(_in_ledger(shop, each) for each in ids))
            for saga_id in ids:
                printed[f"show {saga_id}"] = said(tmp_path, "show", saga_id)
                printed[f"show {saga_id} as JSON"] = said(tmp_path, "show", saga_id, "--json")
            for name in ("order", "delivery"):
                printed[f"list {name}"] = said(tmp_path, "list", "--all", "--saga", name, "--json")
            assert all("stolen" in text for what, text in printed.items() if "as JSON" in what), printed
            printed["Temporal"] = await in_temporal(client, *ids[:3], f"{undone}~undo", f"{undone}/parcel~undo")
            printed["the undo's summary"] = str(await client.temporal.get_workflow_handle(f"{undone}~undo").describe())
    printed["the ledger"] = tables(shop)["saga_run"].decode()
    printed["the log"] = worker.log.read_text(encoding="utf-8")
    assert f"{cancelled}: saga ended COMPENSATED: cancelled: card ••• stolen" in printed["the log"]
    assert [what for what, text in printed.items() if card in text] == []


def _in_ledger(shop: str, saga_id: str) -> bool:
    return saga_id.encode() in tables(shop)["saga_run"]


async def test_the_reason_of_a_pause(project: Project, tmp_path: Path, card: str) -> None:
    with WorkerProcess("worker", tmp_path):
        async with await Client.connect(project) as client:
            saga_id = await start_order(client, card)
            printed = {
                "pause": said(tmp_path, "pause", saga_id, "--reason", f"card {card} blocked"),
                "a second pause": said(tmp_path, "pause", saga_id, "--reason", "mine"),
                "show": said(tmp_path, "show", saga_id),
                "JSON": said(tmp_path, "show", saga_id, "--json"),
                "list": said(tmp_path, "list", "--stuck", "--saga", "order"),
                "doctor": said(tmp_path, "doctor"),
            }
            view = json.loads(printed["JSON"])
            assert view["paused"]["reason"] == "card ••• blocked", view["paused"]
            assert all("card ••• blocked" in printed[what] for what in ("a second pause", "show", "list")), printed
            printed["resume"] = said(tmp_path, "resume", saga_id, "--reason", f"card {card} is free")
            printed["the end"] = said(tmp_path, "show", saga_id)
            await client.cancel(saga_id)
            await finished(client, saga_id)
    assert [what for what, text in printed.items() if card in text] == []


@pytest.mark.slow
async def test_the_reason_of_a_cancel_that_no_worker_answers(project: Project, tmp_path: Path, card: str) -> None:
    async with await Client.connect(project) as client:
        with WorkerProcess("worker", tmp_path):
            saga_id = await start_order(client, card)
        answer = said(tmp_path, "cancel", saga_id, "--reason", f"card {card} stolen")
        assert "no worker has answered" in answer
        history = await client.temporal.get_workflow_handle(saga_id).fetch_history()
        causes = [event.workflow_execution_cancel_requested_event_attributes.cause for event in history.events]
        assert [cause.partition(": ")[2] for cause in causes if cause] == ["card ••• stolen"]
        with WorkerProcess("worker", tmp_path):
            await finished(client, saga_id)


async def test_forget_names_histories_whose_failures_quote_a_value(project: Project, tmp_path: Path, card: str) -> None:
    """A reason given for a nested saga that does not have the value is not compared with it."""
    with WorkerProcess("worker", tmp_path):
        async with await Client.connect(project) as client:
            saga_id = await start_order(client, card)
            said(tmp_path, "cancel", f"{saga_id}/parcel", "--reason", f"card {card} stolen")
            assert (await finished(client, saga_id))["state"] == "COMPENSATED"
            assert card in await in_temporal(client, f"{saga_id}/parcel")
            done = run_command(["forget", saga_id, "--reason", "asked", "--yes", "--json"], tmp_path)
    [histories] = [place for place in json.loads(done.stdout)["places"] if place["place"].startswith("histories")]
    assert histories["status"] == "stays"
    assert "in clear in messages of failures" in histories["detail"]
