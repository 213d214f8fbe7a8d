"""A story for people: who, what, where it stands, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cli.output import print_table, say
from sagas.details import MARKS


def print_story(story: Mapping[str, Any]) -> None:
    """Print a `saga show` document for a person."""
    say(f"{story['id']}  {story['saga']}  {story['state']}")
    reason = story.get("reason")
    if reason:
        where = f" at {reason['step']}" if reason.get("step") else ""
        say(f"  because: {reason['kind']}{where}: {reason.get('message') or ''}")
    rows = [
        (
            MARKS.get(step["state"], " "),
            step["id"],
            step["uses"],
            step["state"],
            (step.get("compensation") or {}).get("state", ""),
        )
        for step in story.get("steps") or ()
    ]
    print_table(rows, indent=2)
    for entry in story.get("parked") or ():
        say(f"  parked: {entry['step']} ({entry['op']}): {entry['why']}")
        for command in entry.get("commands") or ():
            say(f"    {command}")
    for entry in story.get("residue") or ():
        say(f"  residue: {entry['step']} {entry['kind']} {entry.get('key') or ''}")
    if story.get("web_ui"):
        say(f"  {story['web_ui']}")
