"""A participant that answers commands, and cannot read all of them."""

from __future__ import annotations

from pathlib import Path

from sagas import Message, consumer

TOPIC = Path(__file__).with_name("desk.topic").read_text(encoding="utf-8")


@consumer(TOPIC, connection="bank", name="desk", max_attempts=2)
async def desk(message: Message) -> dict[str, str]:
    if message.value == "poison":
        raise ValueError("the desk cannot read it")
    return {"read": str(message.value)}
