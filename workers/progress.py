"""How far the attempts in flight are: what they said with their last heartbeat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workers.runs import Description


async def with_progress(story: Mapping[str, Any], described: Description) -> dict[str, Any]:
    """The story; a step whose attempt beats has a ``progress``: the JSON object of its last heartbeat."""
    beats: dict[str, dict[str, Any]] = {}
    for activity in described.raw.pending_activities:
        if activity.heartbeat_details.payloads:
            values = await described.run.converter.decode(activity.heartbeat_details.payloads[:1])
            if isinstance(values[0], dict) and values[0]:
                beats[activity.activity_id] = values[0]
    if not beats:
        return dict(story)
    steps = [
        {**step, "progress": beats[step["id"]]} if step["id"] in beats else step for step in story.get("steps") or ()
    ]
    return {**story, "steps": steps}
