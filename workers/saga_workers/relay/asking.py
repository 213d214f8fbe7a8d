"""What a saga says about its held events. Only the saga itself, or a person, may say no.

Asked of the saga through Temporal, never of a table: whoever reads a table before a late transaction commits would
take silence for a no.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from temporalio.client import Client as Temporal
from temporalio.service import RPCError

from saga_workers.stories import FINAL_STATES, read_story
from sagas.errors import UsageError

Word = Literal["open", "committed", "over", "unknown"]
"""``open``: it may still come to its commit point. ``committed``: it has. ``over``: it ended, and never came there."""

PATIENCE = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Answer:
    """One saga's answer about one entry; ``why`` is the reason of ``unknown``."""

    word: Word
    why: str = ""


class Unreachable(Exception):
    """Temporal does not answer; the others need not be asked now."""


async def ask(temporal: Temporal, saga_id: str) -> Mapping[str, Any] | None:
    """The story of a saga with that of its undo; None: Temporal knows none. Raises Unreachable."""
    try:
        return await read_story(temporal, saga_id, patience=PATIENCE)
    except UsageError:
        return None
    except (RPCError, OSError, TimeoutError) as error:
        raise Unreachable(str(error) or type(error).__name__) from error


def judge(story: Mapping[str, Any] | None, step: str, generation: int) -> Answer:
    """What the story means for the held events of one entry (``step`` is its ledger id)."""
    if story is None:
        return Answer("unknown", "Temporal does not know this saga")
    state = story["state"]
    if state in ("TERMINATED", "FAILED"):
        return Answer("unknown", f"the saga was ended from outside ({state})")
    if state not in FINAL_STATES and story["phase"] != "committed":
        return Answer("open")
    entry = next((row for row in story["steps"] if row["id"] == step), None)
    now_at = story["generation"] if entry is None else entry["generation"]
    if now_at is not None and now_at > generation:
        return Answer("unknown", f"it is of generation {generation}, and the saga is at generation {now_at}")
    if state == "COMPENSATED" or (state == "RESIDUE" and story["phase"] != "committed"):
        return Answer("over")
    if entry is None and not story["steps_omitted"]:
        return Answer("unknown", f"the saga is {state}, and says nothing of {step}")
    if entry is not None and entry["outcome"] != "done":
        return Answer("unknown", f"the saga is {state}, and {step} is {entry['state']} in it")
    return Answer("committed")
