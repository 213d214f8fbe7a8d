"""A participant that answers commands, and cannot read all of them."""

from __future__ import annotations

from pathlib import Path

from sagas import Message, consumer

TOPIC = Path(__file__).with_name("commands.topic").read_text(encoding="utf-8")


@consumer(TOPIC, connection="bank", name="request-participant", max_attempts=2)
async def answer_command(message: Message) -> dict[str, str]:
    if message.value == "poison":
        raise ValueError("the participant cannot read it")
    return {"read": str(message.value)}
