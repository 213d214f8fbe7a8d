"""A command that its participant cannot read (cell 20): dead letter, reply, and the waiting saga is notified.

The saga is the transfer with two more steps that send commands: ``ask`` before the deposit is held, and ``tell`` after
the pivot; or with one that is the pivot. The participant is a consumer; the commands are in the saga's input.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from tests.faults.cell_environment import CellEnvironment, default_input
from tests.faults.messaging import messaging
from tests.helpers.waiting import until
from tests.integration.messaging.trigger.trigger_environment import fully_consumed

POISON = "poison"
ASKS = "asks-QUEUE"

_HOLD, _CAPTURE, _SHIP = (
    f"  - id: {step}\n    name: {name}\n"
    for step, name in (("hold", "Hold the deposit"), ("capture", "Capture the deposit"), ("ship", "Ship the goods"))
)


def _request(note: str) -> str:
    return f'uses: kafka.request, with: {{topic: {ASKS}, value: "${{{{ input.notes.{note} }}}}"}}'


def _step(step: str, more: str = "") -> str:
    return f"  - {{id: {step}, timeout: 120s, {_request(step)}{more}}}\n\n"


ASK_AND_TELL: Mapping[str, str] = {
    _HOLD: _step("ask", f", compensate: {{timeout: 120s, {_request('ask_undo')}}}") + _HOLD,
    _SHIP: _step("tell") + _SHIP,
}
"""Edits of the definition for commands before and after the pivot."""

DECIDE: Mapping[str, str] = {
    _CAPTURE: _step("decide", ", pivot: true") + _CAPTURE,
    'input.notes.capture }}"}\n    pivot: true\n': 'input.notes.capture }}"}\n',
}
"""Edits of the definition for a command that is the pivot."""

ASKED: Mapping[str, str] = {"B": "ask", "P": "decide", "A": "tell", "C": "ask_undo"}
POSITIONS = {("hold", "do"): "B", ("capture", "do"): "P", ("ship", "do"): "A", ("hold", "undo"): "C"}


async def poisoned(env: CellEnvironment) -> None:
    """The message is retried, dead-lettered with the reason, and later messages are processed."""
    shared = messaging(env)
    topic, prefix = ASKS.replace("QUEUE", env.queue), env.database
    await asyncio.to_thread(shared.broker.create_topic, topic)
    trigger = await shared.start_reply_listener(env)
    await env.worker()
    input = default_input()
    asked = ASKED[POSITIONS[env.target.step, env.target.op]]
    input["notes"] |= {**dict.fromkeys(ASKED.values(), "something"), asked: POISON}
    await env.start(input)
    await env.finished()
    await asyncio.to_thread(shared.broker.produce, topic, "something else")
    group = f"{prefix}-consumer-request-participant"
    await until(lambda: asyncio.to_thread(fully_consumed, shared.broker, group, topic), "what comes after it")
    dead = await asyncio.to_thread(shared.broker.read_committed, f"{topic}.dlq")
    assert [letter.json() for letter in dead] == [POISON], trigger.tail()
    assert "cannot read it" in dead[0].headers["sagadlqreason"]
    # The row of a command is in the guard, and only that of the other message in the inbox.
    place = "/".join(dead[0].headers[name] for name in ("sagadlqtopic", "sagadlqpartition", "sagadlqoffset"))
    refused = "select count(*) from saga_guard where step = '@request-participant' and strpos(result, %s) > 0"
    rows = 0 if env.target.op == "undo" else 1  # an undo that is refused may be sent again
    assert await env.admin(refused, place) == [(rows,)], await env.admin("select * from saga_guard")
    assert await env.admin("select status from saga_inbox") == [("DONE",)]
