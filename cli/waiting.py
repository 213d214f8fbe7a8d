"""Waiting for the end of a saga, and the exit code that tells how it ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cli.output import print_document, say

if TYPE_CHECKING:
    from workers.client import Client

STILL_RUNNING = 7
PARKED = 4
_POLL = 0.1


def exit_code(story: Mapping[str, Any]) -> int:
    """0 COMPLETED, 3 COMPENSATED, 4 PARKED, 5 RESIDUE, 6 cancelled and compensated, 1 otherwise."""
    match story["state"]:
        case "COMPLETED":
            return 0
        case "COMPENSATED":
            return 6 if (story.get("reason") or {}).get("kind") == "cancelled" else 3
        case "PARKED":
            return PARKED
        case "RESIDUE":
            return 5
        case "RUNNING" | "COMMITTED" | "COMPENSATING":
            return STILL_RUNNING
        case _:
            return 1


async def wait_for_end(client: Client, saga_id: str, timeout: str | None) -> dict[str, Any]:
    """The story when the saga is over or parked, or as it is when ``timeout`` (a duration) has passed."""
    from sagas.definition.durations import parse_duration
    from sagas.errors import UsageError

    try:
        end = None if timeout is None else time.monotonic() + parse_duration(timeout)
    except ValueError as error:
        raise UsageError(f"--timeout: {error}", help="for example --timeout 1m") from None
    pause = _POLL
    while True:
        story = await client.show(saga_id)
        if exit_code(story) != STILL_RUNNING or (end is not None and time.monotonic() >= end):
            return story
        await asyncio.sleep(pause)
        pause = min(pause * 1.3, 2.0)


async def wait_and_print(client: Client, saga_id: str, timeout: str | None) -> int:
    """Wait, print the story, return the exit code."""
    from cli.story_text import print_story

    story = await wait_for_end(client, saga_id, timeout)
    print_document(story, human=lambda: print_story(story))
    if exit_code(story) == STILL_RUNNING:
        say(f"{saga_id} still runs; `saga watch {saga_id}` follows it")
    return exit_code(story)
