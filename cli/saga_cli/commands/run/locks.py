"""`saga locks`: which saga holds which key, and who waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from saga_cli.context import load_settings
from saga_cli.output import echo, print_list, warn


def locks(
    keys: Annotated[list[str] | None, typer.Argument(help="only these keys")] = None,
    limit: Annotated[int, typer.Option(help="maximum number of keys, in their order", min=1)] = 100,
) -> int:
    """List the locked keys with their owners and, in the order of their arrival, the sagas that wait for them."""
    from saga_workers.views.locks import list_locks

    locks = asyncio.run(list_locks(load_settings(), keys or (), limit + 1))
    print_list([lock.to_json() for lock in locks[:limit]], human=_print_locks)
    if len(locks) > limit:
        warn(f"more than {limit} keys are locked", "help: --limit shows more of them, KEY… those that you name")
    return 0


def _print_locks(locks: Sequence[dict[str, Any]]) -> None:
    from sagas.presentation.styled_text import format_duration, parse_timestamp

    now = datetime.now(UTC)

    def age(since: str | None) -> str:
        at = parse_timestamp(since)
        return f" for {format_duration(now, at)}" if at else ""

    if not locks:
        echo("nothing is locked")
    for lock in locks:
        held = f"held by {lock['owner']}{age(lock['since'])}" if lock["owner"] else "not held"
        echo(f"{lock['key']}  {held}")
        for waiter in lock["waiters"]:
            echo(f"    {waiter['saga_id']} waits{age(waiter['since'])}")
