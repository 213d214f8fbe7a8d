"""`kafka.request` with a participant that knows nothing but the message format."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.processes import TemporalServer
from tests.integration.messaging.request.request_environment import World, open_world, resolve, row_of, until

INPUT = """
input:
  type: object
  properties:
    do: {type: string, default: done}
    undo: {type: string, default: done}
    go: {type: boolean, default: true}
"""
OUTPUT = """
output: {reserved: "${{ steps.reserve.result }}"}
"""
COMMAND = """
steps:
  - id: reserve
    uses: kafka.request
    with: {topic: PREFIX-commands, value: {do: "${{ input.do }}", undo: "${{ input.undo }}"}}
"""
RESERVE = f"{COMMAND}    compensate: kafka.request\n"
NEXT = """
  - {id: next, uses: require, with: {that: "${{ input.go }}", message: it was not to be}}
"""
ORDER = f"saga: order\n{INPUT}{RESERVE}{NEXT}{OUTPUT}"
IMPATIENT = (
    f"saga: impatient\ndefaults: {{timeout: 3s, retry: {{intervals: [100ms], max_attempts: 2}}}}\n{INPUT}{RESERVE}"
)
PAUSES = f"saga: pauses\ndefaults: {{timeout: 2s, retry: {{intervals: [6s], max_attempts: 3}}}}\n{INPUT}{RESERVE}"
PIVOT = f"saga: pivot\n{INPUT}{COMMAND}    pivot: true\n"
BOTH = f"""
saga: both
{INPUT}
steps:
  - id: book
    uses: sql
    with: {{connection: shop, run: "select 1 as one"}}
    confirm: {{uses: kafka.request, with: {{topic: PREFIX-commands, value: {{confirm: done}}}}}}
    compensate:
      uses: kafka.request
      with: {{topic: PREFIX-commands, value: {{undo: done}}}}
      confirmed: {{uses: kafka.request, with: {{topic: PREFIX-commands, value: {{undo: done}}}}}}
{NEXT}
"""


@pytest.fixture(scope="module")
async def world(
    tmp_path_factory: pytest.TempPathFactory, temporal: TemporalServer, kafka: Broker, postgres_server: DatabaseServer
) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("requests") / "project"
    definitions = (ORDER, IMPATIENT, PAUSES, PIVOT, BOTH)
    async with open_world(folder, temporal, kafka, postgres_server, *definitions) as found:
        yield found


def sent_headers(row: Any) -> dict[str, str]:
    return json.loads(row["headers"])


async def test_done(world: World) -> None:
    story = await world.play("order")
    assert story["state"] == "COMPLETED", story
    key = f"{story['id']}/reserve"
    assert story["output"] == {"reserved": {"id": key, "op": "do"}}
    assert row_of(story, "reserve")["attempts"] == 1
    [command] = await world.sent(story["id"])
    assert command["event_key"] == story["id"], "do and undo of one saga stay in order"
    row = await world.row(key)
    assert row is not None
    assert row["outcome"] == "done"
    assert world.effects(story["id"]) == [key]


async def test_rejected_is_compensated_with_the_reason_of_the_participant(world: World) -> None:
    story = await world.play("order", do="reject")
    assert story["state"] == "COMPENSATED"
    assert story["reason"] | {"kind": "rejected", "step": "reserve", "message": "no do today"} == story["reason"]
    assert story["reason"]["details"] == {"op": "do"}
    assert world.seen(story["id"]) == ["do"], "a refused command has nothing to undo"


async def test_a_later_failure_sends_the_undo_command(world: World) -> None:
    story = await world.play("order", go=False)
    assert story["state"] == "COMPENSATED"
    assert row_of(story, "reserve")["state"] == "COMPENSATED"
    do, undo = await world.sent(story["id"])
    key = f"{story['id']}/reserve"
    assert sent_headers(do) == {"sagakey": key, "sagaop": "do", "sagareplyto": f"{world.prefix}-replies"}
    assert sent_headers(undo) == {
        "sagakey": f"{key}/undo",
        "sagaop": "undo",
        "sagaundoes": key,
        "sagareplyto": f"{world.prefix}-replies",
    }
    assert world.seen(story["id"]) == ["do", "undo"]
    assert world.effects(story["id"]) == []


async def test_no_reply_in_time_is_unknown_and_undone_by_a_command(world: World) -> None:
    story = await world.play("impatient", do="silent")
    assert story["state"] == "COMPENSATED"
    assert story["reason"]["kind"] == "unknown"
    assert story["reason"]["message"] == "no answer within the `timeout` of the attempt"
    reserve = row_of(story, "reserve")
    assert (reserve["outcome"], reserve["state"]) == ("unknown", "COMPENSATED")
    assert world.seen(story["id"]) == ["do", "undo"], "the second attempt waits for the reply, it sends nothing"

    # Whoever answers now is too late for this saga; what he says is kept.
    before = world.listener.counts["late"]
    world.answer(f"{story['id']}/reserve", "done", {"late": True})
    await until(lambda: world.listener.counts["late"] > before)
    row = await world.row(f"{story['id']}/reserve")
    assert row is not None
    assert (row["outcome"], json.loads(row["data"])) == ("done", {"late": True})
    assert (await world.client.show(story["id"]))["state"] == "COMPENSATED"


async def test_the_next_attempt_finds_a_reply_that_came_between(world: World) -> None:
    saga_id = await world.begin("pauses", do="held")
    handle = world.client.temporal.get_workflow_handle(saga_id)

    async def pausing() -> bool:
        [pending] = (await handle.describe()).raw_description.pending_activities or [None]
        return pending is not None and pending.attempt == 2 and pending.state == 1  # scheduled, not started

    await until(pausing)
    before = world.listener.counts["late"]
    world.let_go(saga_id)
    await until(lambda: world.listener.counts["late"] > before)
    story = await world.ended(saga_id)
    assert story["state"] == "COMPLETED"
    assert row_of(story, "reserve")["attempts"] >= 2, "on a busy machine the second attempt may come before the reply"
    assert world.seen(saga_id) == ["do"]


async def test_a_second_reply_changes_nothing(world: World) -> None:
    before = world.listener.counts["duplicate"]
    story = await world.play("order", do="twice")
    assert story["state"] == "COMPLETED"
    await until(lambda: world.listener.counts["duplicate"] > before)
    world.answer(f"{story['id']}/reserve", "rejected", {"reason": "changed my mind"})
    await until(lambda: world.listener.counts["duplicate"] > before + 1)
    row = await world.row(f"{story['id']}/reserve")
    assert row is not None
    assert row["outcome"] == "done"


async def test_a_reply_for_which_nobody_has_asked_does_not_stop_the_others(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    before = world.listener.counts["unknown"]
    story = await world.play("order", do="strangers")
    assert story["state"] == "COMPLETED"
    assert world.listener.counts["unknown"] == before + 1
    assert "a reply (done) to nobody/asked, for which nobody has asked here, is ignored" in caplog.text


@pytest.mark.parametrize(
    ("headers", "value", "reason"),
    [
        ({"sagakey": "k", "sagaoutcome": "done"}, b"{what", "the value is not JSON"),
        ({"sagakey": "k", "sagaoutcome": "done"}, b"\xff\xfe", "the value is not UTF-8"),
        ({"sagakey": "k", "sagaoutcome": "done"}, b'"\\ud800"', "the value holds half a character"),
        ({"sagakey": "k", "sagaoutcome": "done"}, b"NaN", "the value is not JSON"),
        ({"sagakey": "k", "sagaoutcome": "perhaps"}, b"1", "the header sagaoutcome is 'perhaps'"),
        ({"sagakey": "k"}, b"1", "the header sagaoutcome is missing"),
        ({"sagaoutcome": "done"}, b"1", "the header sagakey is missing"),
        ({"sagakey": "k" * 2000, "sagaoutcome": "done"}, b"1", "the header sagakey is no key of a command"),
    ],
)
async def test_a_reply_that_nobody_can_read_is_a_dead_letter(
    world: World, headers: dict[str, str], value: bytes, reason: str
) -> None:
    before = world.listener.counts["malformed"]
    world.kafka.produce(f"{world.prefix}-replies", value, headers=headers)
    await until(lambda: world.listener.counts["malformed"] > before)
    last = world.kafka.read_committed(f"{world.prefix}-replies.dlq")[-1]
    assert last.value == value
    assert reason in last.headers["sagadlqreason"]
    assert last.headers["sagadlqtopic"] == f"{world.prefix}-replies"


async def test_after_a_reply_that_nobody_can_read_the_right_one_counts(world: World) -> None:
    story = await world.play("order", do="garbled")
    assert story["state"] == "COMPLETED"


async def test_a_refused_undo_parks_and_a_person_has_it_sent_again(world: World) -> None:
    story = await world.play("order", go=False, undo="reject")
    assert story["state"] == "PARKED"
    assert story["parked"][0]["step"] == "reserve"
    assert "no undo today" in row_of(story, "reserve")["compensation"]["error"]["message"]
    with_ = {"topic": world.commands, "value": {"undo": "done"}}
    await resolve(world, story["id"], "reserve", "retry", **{"with": with_})
    story = await world.ended(story["id"])
    assert story["state"] == "COMPENSATED"
    assert world.seen(story["id"]) == ["do", "undo", "undo"]
    assert world.effects(story["id"]) == []


async def test_cancel_does_not_wait_for_the_reply(world: World) -> None:
    """The attempt has five minutes; whoever cancels gets his undo command after a moment."""
    saga_id = await world.begin("order", do="silent")
    await world.waits(saga_id)
    await until(lambda: world.seen(saga_id) == ["do"])
    await world.client.cancel(saga_id)
    story = await world.ended(saga_id)
    assert story["state"] == "COMPENSATED"
    assert story["reason"]["kind"] == "cancelled"
    assert row_of(story, "reserve")["outcome"] == "unknown"
    assert world.seen(saga_id) == ["do", "undo"]


async def test_a_reply_that_comes_right_after_the_cancel_says_what_to_undo(world: World) -> None:
    saga_id = await world.begin("order", do="held")
    await until(lambda: world.seen(saga_id) == ["do"])
    await world.client.cancel(saga_id)
    world.let_go(saga_id)
    story = await world.ended(saga_id)
    assert story["state"] == "COMPENSATED"
    assert row_of(story, "reserve")["outcome"] == "done"
    assert world.effects(saga_id) == []


async def test_a_pivot_is_awaited_whoever_cancels(world: World) -> None:
    saga_id = await world.begin("pivot", do="held")
    await until(lambda: world.seen(saga_id) == ["do"])
    await world.client.cancel(saga_id)
    assert (await world.client.show(saga_id))["state"] == "RUNNING"
    world.let_go(saga_id)
    assert (await world.ended(saga_id))["state"] == "COMPLETED"


async def test_a_refused_pivot_leads_backward(world: World) -> None:
    story = await world.play("pivot", do="reject")
    assert (story["state"], story["reason"]["message"]) == ("COMPENSATED", "no do today")


@pytest.mark.parametrize(("go", "state", "ops"), [(True, "COMPLETED", ["confirm"]), (False, "COMPENSATED", ["undo"])])
async def test_confirm_and_compensate_of_a_guarded_step(world: World, go: bool, state: str, ops: list[str]) -> None:
    story = await world.play("both", go=go)
    assert story["state"] == state
    assert world.seen(story["id"]) == ops
    assert story["steps"][0]["state"] == ("CONFIRMED" if go else "COMPENSATED")


async def test_a_command_that_is_too_large_is_refused_before_anything_happens(world: World) -> None:
    story = await world.play("order", do="x" * 1_100_000)
    assert story["state"] == "COMPENSATED"
    assert story["reason"]["kind"] == "failed"
    assert "bytes" in story["reason"]["message"]
    assert await world.sent(story["id"]) == []
