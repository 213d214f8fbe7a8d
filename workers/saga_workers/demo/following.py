"""Follows one saga until it has ended, or until only a person can help it on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from temporalio.client import WorkflowFailureError

from saga_workers.client import Client

Story = Mapping[str, Any]


async def follow(client: Client, saga_id: str, look_again: float | None) -> Story:
    """The story at the end, or once it is parked, which is asked every ``look_again`` seconds (None: never)."""
    handle = client.temporal.get_workflow_handle(saga_id)
    while True:
        try:
            await asyncio.wait_for(handle.result(), look_again)
        except WorkflowFailureError:
            pass  # compensated: the story tells
        except TimeoutError:
            parked = await _parked(client, saga_id)
            if parked is None:
                continue
            return parked
        return await client.show(saga_id)


async def _parked(client: Client, saga_id: str) -> Story | None:
    """The story of the saga that needs a person: this one, or the checkout inside it."""
    story = await client.show(saga_id)
    if story["state"] == "PARKED":
        return story
    if story["saga"] == "weekly-order" and any(step["id"] == "buy" and step["started_at"] for step in story["steps"]):
        inner = await client.show(f"{saga_id}/buy")
        return inner if inner["state"] == "PARKED" else None
    return None
