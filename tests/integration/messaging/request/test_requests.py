"""`kafka.request` with a participant that knows nothing but the message format."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import text

from saga_workers.runtime.logs import record_context
from saga_workers.stuck.guard_scan import GuardScan
from saga_workers.stuck.open_sagas import find_lost
from saga_workers.stuck.resumption import start_again
from sagas.errors import UsageError
from sagas.protocol.payloads import UNDO_SUFFIX
from sagas.protocol.standing_pause import CIRCUIT_BREAKER, StandingPause
from tests.helpers import run_changes
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.integration.messaging.request.request_environment import (
    Environment,
    open_environment,
    resolve,
    row_of,
)
from tests.integration.trust.test_forged_answers import forge

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
WAIT = """
  - {id: go, uses: wait, with: {signal: go}}
"""
NEXT = """
  - {id: next, uses: require, with: {that: "${{ input.go }}", message: it was not to be}}
"""
ORDER = f"saga: order\n{INPUT}{RESERVE}{NEXT}{OUTPUT}"
WAITING = f"saga: waiting\n{INPUT}{RESERVE}{WAIT}"
SHORT_TIMEOUT = (
    f"saga: short-timeout\ndefaults: {{timeout: 3s, retry: {{intervals: [100ms], max_attempts: 2}}}}\n{INPUT}{RESERVE}"
)
PAUSES = f"saga: pauses\ndefaults: {{timeout: 2s, retry: {{intervals: [6s], max_attempts: 3}}}}\n{INPUT}{RESERVE}"
ONCE = f"saga: once\ndefaults: {{retry: {{max_attempts: 1}}}}\n{INPUT}{RESERVE}"
PIVOT = f"saga: pivot\n{INPUT}{COMMAND}    pivot: true\n"
ELSEWHERE = f"saga: elsewhere\n{INPUT}{COMMAND}    pivot: true\n".replace(
    "with: {", "with: {reply_topic: PREFIX-elsewhere, "
)
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
async def env(
    tmp_path_factory: pytest.TempPathFactory, temporal: TemporalServer, kafka: Broker, postgres_server: DatabaseServer
) -> AsyncIterator[Environment]:
    folder = tmp_path_factory.mktemp("requests") / "project"
    definitions = (ORDER, WAITING, SHORT_TIMEOUT, PAUSES, ONCE, PIVOT, ELSEWHERE, BOTH)
    async with open_environment(folder, temporal, kafka, postgres_server, *definitions) as environment:
        yield environment


def sent_headers(row: Any) -> dict[str, str]:
    return json.loads(row["headers"])


async def test_done(env: Environment) -> None:
    story = await env.run_saga("order")
    assert story["state"] == "COMPLETED", story
    key = f"{story['id']}/reserve"
    assert story["output"] == {"reserved": {"id": key, "op": "do"}}
    assert row_of(story, "reserve")["attempts"] == 1
    [command] = await env.sent(story["id"])
    assert command["event_key"] == story["id"], "do and undo of one saga stay in order"
    row = await env.row(key)
    assert row is not None
    assert row["outcome"] == "done"
    assert env.effects(story["id"]) == [key]


async def test_rejected_is_compensated_with_the_reason_of_the_participant(env: Environment) -> None:
    story = await env.run_saga("order", do="reject")
    assert story["state"] == "COMPENSATED"
    assert story["reason"] | {"kind": "rejected", "step": "reserve", "message": "no do today"} == story["reason"]
    assert story["reason"]["details"] == {"op": "do"}
    assert env.seen(story["id"]) == ["do"], "a refused command has nothing to undo"


async def test_a_later_failure_sends_the_undo_command(env: Environment) -> None:
    story = await env.run_saga("order", go=False)
    assert story["state"] == "COMPENSATED"
    assert row_of(story, "reserve")["state"] == "COMPENSATED"
    do, undo = await env.sent(story["id"])
    key = f"{story['id']}/reserve"
    assert sent_headers(do) == {
        "sagakey": key,
        "sagaop": "do",
        "sagareplyto": f"{env.prefix}-replies",
        "sagatoken": await env.token(key),
    }
    assert sent_headers(undo) == {
        "sagakey": f"{key}/undo",
        "sagaop": "undo",
        "sagaundoes": key,
        "sagareplyto": f"{env.prefix}-replies",
        "sagatoken": await env.token(f"{key}/undo"),
    }
    assert sent_headers(do)["sagatoken"] != sent_headers(undo)["sagatoken"], "who sees one command answers only that"
    assert env.seen(story["id"]) == ["do", "undo"]
    assert env.effects(story["id"]) == []


async def test_no_reply_in_time_is_unknown_and_undone_by_a_command(env: Environment) -> None:
    story = await env.run_saga("short-timeout", do="silent")
    assert story["state"] == "COMPENSATED"
    assert story["reason"]["kind"] == "unknown"
    assert story["reason"]["message"] == "no response within the `timeout` of the attempt"
    reserve = row_of(story, "reserve")
    assert (reserve["outcome"], reserve["state"]) == ("unknown", "COMPENSATED")
    assert env.seen(story["id"]) == ["do", "undo"], "the second attempt waits for the reply, it sends nothing"

    # A reply now is too late for this saga; it is stored.
    before = env.listener.counts["late"]
    await env.answer(f"{story['id']}/reserve", "done", {"late": True})
    await until(lambda: env.listener.counts["late"] > before)
    row = await env.row(f"{story['id']}/reserve")
    assert row is not None
    assert (row["outcome"], json.loads(row["data"])) == ("done", {"late": True})
    assert (await env.client.show(story["id"]))["state"] == "COMPENSATED"


async def test_the_next_attempt_finds_a_reply_that_arrived_between_attempts(env: Environment) -> None:
    saga_id = await env.begin("pauses", do="held")
    handle = env.client.temporal.get_workflow_handle(saga_id)

    async def pausing() -> bool:
        [pending] = (await handle.describe()).raw_description.pending_activities or [None]
        return pending is not None and pending.attempt == 2 and pending.state == 1  # scheduled, not started

    await until(pausing)
    before = env.listener.counts["late"]
    env.let_go(saga_id)
    await until(lambda: env.listener.counts["late"] > before)
    story = await env.ended(saga_id)
    assert story["state"] == "COMPLETED"
    assert row_of(story, "reserve")["attempts"] >= 2, "on a busy machine the second attempt may come before the reply"
    assert env.seen(saga_id) == ["do"]


async def test_a_second_reply_changes_nothing(env: Environment) -> None:
    before = env.listener.counts["duplicate"]
    story = await env.run_saga("order", do="twice")
    assert story["state"] == "COMPLETED"
    await until(lambda: env.listener.counts["duplicate"] > before)
    await env.answer(f"{story['id']}/reserve", "rejected", {"reason": "changed my mind"})
    await until(lambda: env.listener.counts["duplicate"] > before + 1)
    row = await env.row(f"{story['id']}/reserve")
    assert row is not None
    assert row["outcome"] == "done"


async def test_an_unsolicited_reply_does_not_block_others(env: Environment, caplog: pytest.LogCaptureFixture) -> None:
    before = env.listener.counts["unknown"]
    story = await env.run_saga("order", do="strangers")
    assert story["state"] == "COMPLETED"
    await until(lambda: env.listener.counts["unknown"] == before + 1)  # it may be in another partition
    [ignored] = [record for record in caplog.records if record.getMessage() == "reply without a request ignored"]
    assert record_context(ignored) == {"key": "nobody/asked", "outcome": "done"}


@pytest.mark.sampled(keep=2)
@pytest.mark.parametrize(
    ("saga", "forged", "reason"),
    [
        ("order", {"token": None}, "the header sagatoken is missing: the participant must copy it from the command"),
        ("order", {"token": "guessed"}, "the header sagatoken is not that of the command"),
        ("order", {"token": "größe\ud800".encode("utf-8", "replace").decode()}, "the header sagatoken is not that"),
        ("elsewhere", {}, "the command asks for its reply in PREFIX-elsewhere, not in PREFIX-replies"),
    ],
)
async def test_a_forged_reply_is_a_dead_letter_and_the_saga_still_waits(
    env: Environment, saga: str, forged: dict[str, Any], reason: str
) -> None:
    saga_id = await env.begin(saga, do="held")
    key = f"{saga_id}/reserve"
    await env.waits(saga_id)
    before = env.listener.counts["refused"]
    await env.answer(key, "rejected", {"reason": "forged"}, **forged)
    await until(lambda: env.listener.counts["refused"] > before)
    last = env.kafka.read_committed(f"{env.prefix}-replies.dlq")[-1]
    assert last.headers["sagadlqreason"].startswith(reason.replace("PREFIX", env.prefix))
    row = await env.row(key)
    assert row is not None
    assert (row["outcome"], row["data"]) == (None, None)
    env.let_go(saga_id)
    story = await env.ended(saga_id)
    assert (story["state"], row_of(story, "reserve")["result"]) == ("COMPLETED", {"id": key, "op": "do"})


OPEN_BREAKER = StandingPause("circuit_breaker", "bank", "2026-03-01T10:00:00Z", CIRCUIT_BREAKER).to_json()


@pytest.mark.parametrize(
    ("type", "flag"), [("Paused", {"counted": False}), ("Infrastructure", {"breaker": OPEN_BREAKER})]
)
async def test_a_forged_failure_does_not_repeat_a_command_without_limit(
    env: Environment, type: str, flag: dict[str, Any]
) -> None:
    """The failure is that of an attempt which a pause holds, or for which an open circuit breaker is not charged."""
    saga_id = await env.begin("once", do="silent")
    await env.waits(saga_id)
    detail = {"outcome": "failed", "attempt": 1, "retry_after": 0, **flag, "details": {}}
    await forge(env.client, saga_id, type, detail, step="reserve")
    story = await env.ended(saga_id, "20s")
    assert (story["state"], row_of(story, "reserve")["attempts"]) == ("COMPENSATED", 1)


async def test_the_token_of_a_command_is_neither_shown_nor_logged(
    env: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    saga_id = await env.begin("order", do="held", go=False)
    await env.waits(saga_id)
    token = await env.token(f"{saga_id}/reserve")
    before = env.listener.counts["refused"]
    await env.answer(f"{saga_id}/reserve", token=f"{token}x")
    await until(lambda: env.listener.counts["refused"] > before)
    env.let_go(saga_id)
    story = await env.ended(saga_id)
    history = await env.client.temporal.get_workflow_handle(saga_id).fetch_history()
    logged = "".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)
    for place in (json.dumps(story), history.to_json(), logged):
        assert token not in place
        assert base64.b64encode(token.encode()).decode()[:-2] not in place


@pytest.mark.sampled(keep=3)
@pytest.mark.parametrize(
    ("headers", "value", "reason"),
    [
        ({"sagakey": "k", "sagaoutcome": "done"}, b"{what", "the value is not usable JSON"),
        ({"sagakey": "k", "sagaoutcome": "done"}, b"\xff\xfe", "the value is not UTF-8"),
        ({"sagakey": "k", "sagaoutcome": "done"}, b'"\\ud800"', "it contains half a surrogate pair"),
        ({"sagakey": "k", "sagaoutcome": "done"}, b"NaN", "the value is not usable JSON"),
        ({"sagakey": "k", "sagaoutcome": "done"}, b'{"a": 1e9999}', "the value is not usable JSON"),
        ({"sagakey": "k", "sagaoutcome": "perhaps"}, b"1", "the header sagaoutcome is 'perhaps'"),
        ({"sagakey": "k"}, b"1", "the header sagaoutcome is missing"),
        ({"sagaoutcome": "done"}, b"1", "the header sagakey is missing"),
        ({"sagakey": "k" * 2000, "sagaoutcome": "done"}, b"1", "the header sagakey is not the key of a command"),
    ],
)
async def test_an_unreadable_reply_is_a_dead_letter(
    env: Environment, headers: dict[str, str], value: bytes, reason: str
) -> None:
    before = env.listener.counts["malformed"]
    await until(lambda: f"{env.prefix}-replies" in env.kafka.topics())  # the listener creates it
    env.kafka.produce(f"{env.prefix}-replies", value, headers=headers)
    await until(lambda: env.listener.counts["malformed"] > before)
    last = env.kafka.read_committed(f"{env.prefix}-replies.dlq")[-1]
    assert last.value == value
    assert reason in last.headers["sagadlqreason"]
    assert last.headers["sagadlqtopic"] == f"{env.prefix}-replies"


async def test_a_valid_reply_after_an_unreadable_one_counts(env: Environment) -> None:
    story = await env.run_saga("order", do="garbled")
    assert story["state"] == "COMPLETED"


async def test_a_rejected_undo_parks_and_an_operator_resends_it(env: Environment) -> None:
    story = await env.run_saga("order", go=False, undo="reject")
    assert story["state"] == "PARKED"
    assert story["parked"][0]["step"] == "reserve"
    assert "no undo today" in row_of(story, "reserve")["compensation"]["error"]["message"]
    with_ = {"topic": env.commands, "value": {"undo": "done"}}
    await resolve(env, story["id"], "reserve", "retry", **{"with": with_})
    story = await env.ended(story["id"])
    assert story["state"] == "COMPENSATED"
    assert env.seen(story["id"]) == ["do", "undo", "undo"]
    assert env.effects(story["id"]) == []


@pytest.mark.slow
async def test_cancel_does_not_wait_for_the_reply(env: Environment) -> None:
    """The attempt has five minutes; a cancel sends the undo command at once."""
    saga_id = await env.begin("order", do="silent")
    await env.waits(saga_id)
    await until(lambda: env.seen(saga_id) == ["do"])
    await env.client.cancel(saga_id)
    story = await env.ended(saga_id)
    assert story["state"] == "COMPENSATED"
    assert story["reason"]["kind"] == "cancelled"
    assert row_of(story, "reserve")["outcome"] == "unknown"
    assert env.seen(saga_id) == ["do", "undo"]


async def test_a_reply_right_after_the_cancel_decides_what_to_undo(env: Environment) -> None:
    saga_id = await env.begin("order", do="held")
    await until(lambda: env.seen(saga_id) == ["do"])
    await env.client.cancel(saga_id)
    env.let_go(saga_id)
    story = await env.ended(saga_id)
    assert story["state"] == "COMPENSATED"
    assert row_of(story, "reserve")["outcome"] == "done"
    assert env.effects(saga_id) == []


async def test_a_pivot_is_awaited_despite_a_cancel(env: Environment) -> None:
    saga_id = await env.begin("pivot", do="held")
    await until(lambda: env.seen(saga_id) == ["do"])
    await env.client.cancel(saga_id)
    assert (await env.client.show(saga_id))["state"] == "RUNNING"
    env.let_go(saga_id)
    assert (await env.ended(saga_id))["state"] == "COMPLETED"


async def test_a_rejected_pivot_compensates(env: Environment) -> None:
    story = await env.run_saga("pivot", do="reject")
    assert (story["state"], story["reason"]["message"]) == ("COMPENSATED", "no do today")


@pytest.mark.parametrize(("go", "state", "ops"), [(True, "COMPLETED", ["confirm"]), (False, "COMPENSATED", ["undo"])])
async def test_confirm_and_compensate_of_a_guarded_step(env: Environment, go: bool, state: str, ops: list[str]) -> None:
    story = await env.run_saga("both", go=go)
    assert story["state"] == state
    assert env.seen(story["id"]) == ops
    assert story["steps"][0]["state"] == ("CONFIRMED" if go else "COMPENSATED")


async def test_a_command_that_is_too_large_is_refused_before_anything_happens(env: Environment) -> None:
    story = await env.run_saga("order", do="x" * 1_100_000)
    assert story["state"] == "COMPENSATED"
    assert story["reason"]["kind"] == "failed"
    assert "bytes" in story["reason"]["message"]
    assert await env.sent(story["id"]) == []


@pytest.mark.slow
async def test_replies_in_a_topic_that_was_created_again_are_read(env: Environment) -> None:
    """The listener's position belongs to the topic of that name before."""
    for _ in range(6):
        assert (await env.run_saga("order"))["state"] == "COMPLETED"
    saga_id = await env.begin("order", do="held")
    await until(lambda: env.seen(saga_id) == ["do"])
    replies = f"{env.prefix}-replies"
    env.kafka.delete_topic(replies)
    env.kafka.create_topic(replies, partitions=4)
    env.let_go(saga_id)
    assert (await env.ended(saga_id, "60s"))["state"] == "COMPLETED"


async def lose_run(env: Environment, saga_id: str) -> None:
    """Delete the run, as an operator does, and find the saga without it."""
    locator, settings = env.client.locator, env.project.settings
    assert await find_lost(locator, settings, suspects=[saga_id]) == []
    await run_changes.delete_run(env.client.temporal, saga_id)
    with pytest.raises(UsageError, match=r"its effects are open: reserve by kafka\.request"):
        await env.client.show(saga_id)
    [lost] = await find_lost(locator, settings, suspects=[saga_id])
    assert (lost.saga, lost.holds) == ("waiting", ("open effects: reserve by kafka.request",))
    async with env.engine.begin() as connection:
        older = text("update saga_request set created_at = created_at - 120 where saga_id = :id")
        await connection.execute(older, {"id": saga_id})
    scan, suspects = GuardScan(settings), set[str]()
    while not scan.complete:
        suspects.update(await scan.find_suspects(locator, 20))
    assert saga_id in suspects


async def test_a_deleted_run_is_found_by_its_command_and_started_again(env: Environment) -> None:
    saga_id = await env.begin("waiting")

    async def waits() -> bool:
        story = await env.client.show(saga_id)
        return bool(story["steps"]) and row_of(story, "go")["state"] == "RUNNING"

    await until(waits)
    await lose_run(env, saga_id)
    await start_again(env.client, await env.client.locator.locate(saga_id), not_ended=True)
    await until(waits)
    assert env.seen(saga_id) == ["do"]
    await env.client.cancel(saga_id)
    story = await env.ended(saga_id)
    assert (story["state"], env.seen(saga_id), env.effects(saga_id)) == ("COMPENSATED", ["do", "undo"], [])
    assert await find_lost(env.client.locator, env.project.settings, suspects=[saga_id]) == []


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("replied", [False, True])
async def test_a_run_that_repeats_one_which_sent_the_undo_goes_backward(env: Environment, replied: bool) -> None:
    saga_id = await env.begin("waiting", undo="silent")
    undo = f"{saga_id}/reserve/undo"

    async def waits() -> bool:
        story = await env.client.show(saga_id)
        return bool(story["steps"]) and row_of(story, "go")["state"] == "RUNNING"

    await until(waits)
    await env.client.cancel(saga_id)
    await env.waits(saga_id, "reserve/undo")
    await lose_run(env, saga_id)
    if replied:
        await env.answer(undo)
        await until(lambda: _is_answered(env, undo))
    await start_again(env.client, await env.client.locator.locate(saga_id), not_ended=True)
    if not replied:
        await until(lambda: _is_undoing(env, saga_id))
        await env.answer(undo)
    story = await env.ended(saga_id)
    assert (story["state"], story["reason"]["kind"], env.seen(saga_id)) == ("COMPENSATED", "late", ["do", "undo"])


async def _is_answered(env: Environment, key: str) -> bool:
    row = await env.row(key)
    return row is not None and row["outcome"] == "done"


async def _is_undoing(env: Environment, saga_id: str) -> bool:
    story = await env.client.show(saga_id)  # without steps while no worker answers
    undo = row_of(story, "reserve")["compensation"] if story["steps"] else None
    return undo is not None and undo["state"] == "RUNNING"


async def test_a_new_undo_asks_the_participant_that_has_refused_the_former_one(env: Environment) -> None:
    story = await env.run_saga("order", undo="reject")
    id = story["id"]
    for commands in (["do", "undo"], ["do", "undo", "undo"]):
        await env.client.undo(id, reason="a test", who="ada")

        async def is_parked() -> bool:
            return (await env.client.show(id))["state"] == "PARKED"

        await until(is_parked)
        assert env.seen(id) == commands
        await run_changes.delete_run(env.client.temporal, f"{id}{UNDO_SUFFIX}")
