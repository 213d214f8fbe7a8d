"""Whole sagas with HTTP steps: YAML → Temporal → the payment service, and back."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from sagas import Rejected, Step, action
from sagas.settings import HttpService
from sagas.settings.connections import Idempotency
from sagas.text.digests import name_uuid
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.payment_server import PaymentServer
from tests.helpers.processes import TemporalServer

PAY = """
saga: pay
input:
  type: object
  required: [account, amount, ship]
steps:
  - id: balance
    uses: http
    with: {connection: crm, path: /echo, query: {account: "${{ input.account }}"}, result: response.status}
  - id: charge
    uses: http
    with:
      connection: crm
      method: POST
      path: /charges
      json: {account: "${{ input.account }}", amount: "${{ input.amount }}"}
      result: response.json.id
    retry: {max_attempts: 4, initial_interval: 100ms}
    timeout: 2s
    compensate:
      uses: http
      with: {connection: crm, method: POST, path: /refunds, json: {charge: "${{ steps.charge.result }}"}}
    probe:
      uses: http
      with: {connection: crm, path: /charges, query: {key: "${{ step.key }}"}}
      done: response.status == 200
      absent: response.status == 404
      result: response.json.id
  - id: ship
    uses: warehouse.ship
    with: {possible: "${{ input.ship }}"}
    pivot: true
output: {charge: "${{ steps.charge.result }}"}
"""


@action("warehouse.ship")
async def ship(step: Step, possible: bool) -> None:
    if not possible:
        raise Rejected("out of stock")


async def pay(
    temporal: TemporalServer,
    server: PaymentServer,
    folder: Path,
    definition: str = PAY,
    service: HttpService | None = None,
    **changed: Any,
) -> dict[str, Any]:
    crm = (service or HttpService()).model_copy(update={"name": "crm", "root": folder, "url_setting": server.url})
    project = make_project(folder, {"pay": definition}, [ship], address=temporal.address, options={"crm": crm})
    async with running_worker(project) as client:
        run = await client.start(
            "pay", {"account": "h-1", "amount": "12.50", "ship": True, **changed}, id=f"pay-{uuid.uuid4()}"
        )
        return await finished(client, run.id)


def step(story: dict[str, Any], name: str) -> dict[str, Any]:
    return next(step for step in story["steps"] if step["id"] == name)


async def test_completed(temporal: TemporalServer, server: PaymentServer, tmp_path: Path) -> None:
    story = await pay(temporal, server, tmp_path)
    assert (story["state"], story["output"]) == ("COMPLETED", {"charge": "ch-1"})
    assert step(story, "charge")["guarantee"] == "participant-keyed"
    assert server.ledger()["charges"][0]["key"] == f"{story['id']}/charge"


async def test_undone(temporal: TemporalServer, server: PaymentServer, tmp_path: Path) -> None:
    story = await pay(temporal, server, tmp_path, ship=False)
    assert story["state"] == "COMPENSATED"
    ledger = server.ledger()
    assert (ledger["balance"], ledger["undone"]) == ("0.00", [f"{story['id']}/charge"])
    [refund] = [request for request in ledger["requests"] if request["path"] == "/refunds"]
    assert refund["headers"]["idempotency-key"] == f"{story['id']}/charge/undo"
    assert refund["headers"]["saga-id"] == story["id"]


async def test_a_connection_with_statuses_and_a_form_of_keys_of_its_own(
    temporal: TemporalServer, server: PaymentServer, tmp_path: Path
) -> None:
    service = HttpService(rejected=(404,), idempotency=Idempotency(header="X-Key", format="uuid"))
    story = await pay(temporal, server, tmp_path / "one", service=service, ship=False)
    [charge, refund] = [each for each in server.ledger()["requests"] if each["path"] in ("/charges", "/refunds")]
    assert charge["headers"]["x-key"] == refund["headers"]["saga-undoes"] == name_uuid(f"{story['id']}/charge")
    assert refund["headers"]["x-key"] == name_uuid(f"{story['id']}/charge/undo")
    assert "saga-id" not in refund["headers"], "the form of the keys hides the id"
    assert story["state"] == "COMPENSATED"
    server.faults({}, {"status": 404, "body": {"error": "no such account"}})
    story = await pay(temporal, server, tmp_path / "two", service=service)
    assert (story["reason"]["kind"], step(story, "charge")["attempts"]) == ("rejected", 1)
    refusing = PAY.replace("path: /charges\n", "path: /charges\n      rejected_when: response.json.id == 'ch-2'\n")
    story = await pay(temporal, server, tmp_path / "three", refusing)
    assert (story["reason"]["kind"], step(story, "charge")["compensation"]["state"]) == ("rejected", "PENDING")


async def test_declined(temporal: TemporalServer, server: PaymentServer, tmp_path: Path) -> None:
    story = await pay(temporal, server, tmp_path, account="broke")
    assert (story["state"], story["reason"]["kind"], story["reason"]["step"]) == ("COMPENSATED", "rejected", "charge")
    told = 'crm responded 422 Unprocessable Entity to POST /charges: `{"error": "card declined"}`'
    assert story["reason"]["message"] == told
    assert server.ledger()["charges"] == []


async def test_a_status_that_no_list_names_says_which_list_would_end_the_retries(
    temporal: TemporalServer, server: PaymentServer, tmp_path: Path
) -> None:
    """The participant repeats a sensitive value at the place where its answer is cut."""
    account = "h-" + "1" * 300
    secret = PAY.replace("  required:", "  properties: {account: {type: string, x-sensitive: true}}\n  required:")
    secret = secret.replace("    timeout: 2s\n", "    timeout: 2s\n    settle: 1s\n")
    body = {"error": "no such account", "account": account, "help": "call the bank"}
    server.faults({}, *[{"status": 404, "body": body}] * 4, {"status": 404})
    story = await pay(temporal, server, tmp_path, secret, account=account)
    message = step(story, "charge")["error"]["message"]
    assert message == (
        'crm responded 404 Not Found to POST /charges: `{"error": "no such account", "account": "•••",'
        ' "help": "call the bank"}`; if this answer is a definite no, write `rejected: [404, 409, 422]`'
    )
    assert "1111" not in str(story["reason"]) + str(step(story, "charge"))


@pytest.mark.sampled(keep=2)
@pytest.mark.parametrize(
    "faults",
    [
        [{"drop": "after"}],
        [{"drop": "before"}, {"status": 503}],
        [{"delay_after": 3.0}],
        [{"status": 429, "headers": {"Retry-After": "1"}}],
    ],
)
async def test_network_errors_charge_once(
    temporal: TemporalServer, server: PaymentServer, tmp_path: Path, faults: list[dict[str, Any]]
) -> None:
    server.faults({}, *faults)  # the first request is the read before the charge
    story = await pay(temporal, server, tmp_path)
    assert story["state"] == "COMPLETED"
    assert server.ledger()["balance"] == "12.50"


async def test_the_probe_finds_a_lost_response(temporal: TemporalServer, tmp_path: Path) -> None:
    """The participant ignores keys: the charge is made once despite a lost response, because it is not repeated."""
    careful = PAY.replace("    timeout: 2s\n", "    timeout: 2s\n    idempotent: false\n    settle: 1s\n")
    with PaymentServer("--ignore-keys") as server:
        server.faults({}, {"drop": "after"})
        story = await pay(temporal, server, tmp_path, careful)
        assert (story["state"], story["output"]) == ("COMPLETED", {"charge": "ch-1"})
        assert server.ledger()["balance"] == "12.50"


async def test_the_probe_decides_when_retries_are_exhausted(
    temporal: TemporalServer, server: PaymentServer, tmp_path: Path
) -> None:
    server.faults({}, {"drop": "after"}, *[{"status": 503}] * 3)
    story = await pay(temporal, server, tmp_path)
    assert (story["state"], story["output"]) == ("COMPLETED", {"charge": "ch-1"})
    assert step(story, "charge")["outcome"] == "done"


@pytest.mark.slow
async def test_an_unknown_charge_is_undone_by_its_key(
    temporal: TemporalServer, server: PaymentServer, tmp_path: Path
) -> None:
    """The charge was made, its answer was lost, and the probe fails: the undo has no charge id, only the key."""
    server.faults({}, {"drop": "after"}, *[{"status": 503}] * 3, {"status": 500})
    story = await pay(temporal, server, tmp_path)
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "unknown")
    assert (step(story, "charge")["outcome"], step(story, "charge")["attempts"]) == ("unknown", 4)
    ledger = server.ledger()
    assert (len(ledger["charges"]), ledger["balance"]) == (1, "0.00")
