"""Who decides, where, and with which words: what the verbs that change something have in common."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from saga_cli.context import target
from saga_cli.output import warn
from sagas.errors import UsageError

if TYPE_CHECKING:
    from saga_workers.client import Client
    from sagas.settings import Settings


def who(given: str | None) -> str | None:
    """``--as``, else SAGA_USER, else None: then the identity of the Temporal client is recorded."""
    return given or os.environ.get("SAGA_USER") or None


def name_target(settings: Settings) -> None:
    """Say where something is about to change, unless it is the embedded stack."""
    if not settings.temporal.embedded:
        warn(target(settings))


def needed(text: str | None, option: str, why: str) -> str:
    """A text that must not be empty. Raises UsageError."""
    if text is None or not text.strip():
        raise UsageError(f"{option} is missing: {why}", help=f"{option} 'a sentence'")
    return text.strip()


def json_option(text: str | None, option: str) -> Any:
    """The JSON value of an option, or the content of ``@file``. Raises UsageError: it is not JSON."""
    from saga_cli.inputs import parse_json

    return None if text is None else parse_json(text, option)


def json_object(text: str | None, option: str) -> dict[str, Any] | None:
    value = json_option(text, option)
    if value is not None and not isinstance(value, dict):
        raise UsageError(f"{option} is a JSON object, not {json.dumps(value)[:60]}")
    return value


async def warn_if_nobody_polls(client: Client) -> None:
    """A saga without a worker waits for one: worth a word, but no error."""
    from saga_workers.pollers import NEXT_STEP, count_pollers, nobody_polls

    queue = client.project.settings.temporal.task_queue
    if not await count_pollers(client.temporal, queue):
        warn(f"warning: {nobody_polls(queue)}, so nothing happens until one does\nhelp: {NEXT_STEP}")
