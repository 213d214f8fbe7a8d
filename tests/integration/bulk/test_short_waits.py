"""A bulk workflow waits for less than a second without a timer of Temporal, which takes about a second."""

from __future__ import annotations

from temporalio.api.enums.v1 import EventType

from saga_workers.start.start_requests import BulkRow
from sagas.bulk.names import DELAY_ACTIVITY
from tests.integration.bulk.conftest import Bank


async def test_retries_within_a_second_are_no_timers(bank: Bank) -> None:
    bank.open_accounts(20)
    inputs = [
        {"id": f"move-{n}", "from": f"a{n}", "to": f"a{n + 1}", "amount": 1, "text": "fails" if n == 7 else "ok"}
        for n in range(1, 20)
    ]
    starter = await bank.client.starter("transfer")
    handle = await starter.start_bulk([BulkRow(str(input["id"]), starter.make_request(input)) for input in inputs])
    assert (await handle.result())["counts"] == {"COMPLETED": 18, "COMPENSATED": 1}
    history = await handle.fetch_history()
    assert not [event for event in history.events if event.event_type == EventType.EVENT_TYPE_TIMER_STARTED]
    delays = [
        event.activity_task_scheduled_event_attributes
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
        and event.activity_task_scheduled_event_attributes.activity_type.name == DELAY_ACTIVITY
    ]
    assert len(delays) == 3  # before the second, third and fourth attempt
    view = (await bank.client.view("move-7")).to_json()
    assert [step["attempts"] for step in view["steps"]] == [1, 1, 4]
    assert sum(bank.balances().values()) == 2_000
    assert bank.balances()["a7"] == 101
