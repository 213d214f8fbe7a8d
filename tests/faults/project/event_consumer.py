"""A consumer of the events of effects: it takes note of each, unless it has noted a later one of the same saga."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sagas import Message, consumer

NOTE = "insert into noted (saga_id, step, op) values (:saga_id, :step, :op)"
FORWARD = ("debit", "hold", "order", "capture", "ship", "thank")


def version(step: str, op: str) -> int:
    """Later in a saga is higher: what is undone is undone in reverse, after all that was done."""
    at = 1 + FORWARD.index(step)
    return at if op == "do" else 2 * len(FORWARD) - at


def take_notes(topic: str, connection: str) -> Callable[[Message], Awaitable[None]]:
    """The consumer of a topic; of the same name whatever the topic, so that all of a database share a version file."""

    @consumer(topic, connection=connection, name=f"notes-{connection}", max_attempts=3)
    async def note(message: Message) -> None:
        step, op = message.value["step"], message.value["op"]
        if await message.newer(str(message.key), version(step, op)):
            await message.sql.execute(NOTE, saga_id=message.key, step=step, op=op)

    return note
