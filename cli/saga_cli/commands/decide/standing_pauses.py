"""`saga pause` and `saga resume` with `--saga` or `--connection`: an order that also holds for sagas started later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from saga_cli.context import load_settings
from saga_cli.output import echo, print_document
from saga_cli.own_identity import own_identity
from sagas.errors import RefusedError, UsageError
from sagas.text.json_values import encodable
from sagas.text.printable import printable_line

if TYPE_CHECKING:
    from saga_workers.ledger.run_ledger import RunLedger
    from sagas.protocol.standing_pause import PauseKind, StandingPause
    from sagas.settings import Settings

T = TypeVar("T")


def is_standing(saga_id: str | None, where: str | None, saga: str | None, connection: str | None, help: str) -> bool:
    """Return whether a command is about a standing pause. Raises UsageError unless exactly one of them is given."""
    if sum(each is not None for each in (saga_id, where, saga, connection)) != 1:
        raise UsageError("give either the id of one saga, --where, --saga or --connection", help=help)
    return saga is not None or connection is not None


def begin_standing_pause(saga: str | None, connection: str | None, reason: str, by: str | None) -> int:
    """Pause a connection, or all sagas of a name. Raises UsageError without a ledger, and for an unknown name."""
    from saga_activities.ledger.tables import MAX_PAUSE_TEXT

    settings = load_settings()
    kind, name = _target(saga, connection)
    who = by or own_identity()
    for text, option in ((reason, "--reason"), (who, "--as")):
        if len(text) > MAX_PAUSE_TEXT:
            raise UsageError(f"{option} has {len(text)} characters, and may have {MAX_PAUSE_TEXT}")

    async def begin(ledger: RunLedger) -> tuple[bool, StandingPause | None]:
        _require_target(settings, kind, name)
        told = {"who": encodable(printable_line(who)), "reason": encodable(printable_line(reason)) or None}
        begun = await ledger.begin_pause(kind, name, **told)
        return begun, await _pause(ledger, kind, name)

    begun, pause = asyncio.run(_with_ledger(settings, begin))
    if pause is None:
        raise RefusedError(f"the pause of {name} was ended by another command at the same time")
    text = pause.text if begun else f"{pause.text}; that pause stays as it is"
    ends_it = f"{pause.resume_command}    ends it"
    document = {**pause.to_json(), "response": "paused" if begun else "already paused"}
    print_document(document, human=lambda: echo(text, ends_it))
    return 0


def end_standing_pause(saga: str | None, connection: str | None) -> int:
    """End the pause, and close the circuit breaker of a connection.

    Raises UsageError without a ledger, RefusedError if there is neither.
    """
    settings = load_settings()
    kind, name = _target(saga, connection)

    async def end(ledger: RunLedger) -> tuple[StandingPause | None, StandingPause | None]:
        pause, breaker = await _pause(ledger, kind, name), await _open_breaker(ledger, kind, name)
        ended = await ledger.end_pause(kind, name)
        closed = kind == "connection" and await ledger.close_breaker(name)
        return pause if ended else None, breaker if closed else None

    pause, breaker = asyncio.run(_with_ledger(settings, end))
    ended = pause or breaker
    if ended is None:
        unless_open = ", and no circuit breaker of it is open" if kind == "connection" else ""
        help = f"saga doctor    lists the pauses{' and circuit breakers' if unless_open else ''}"
        raise RefusedError(f"{_described(kind, name)} is not paused{unless_open}", help=help)
    done = [f"{_described(kind, name)} is resumed"] if pause is not None else []
    done += [f"the circuit breaker of the connection {name} is closed"] if breaker is not None else []
    document = {**ended.to_json(), "response": "resumed" if pause is not None else "closed"}
    if breaker is not None:
        document["circuit_breaker"] = "closed"
    print_document(document, human=lambda: echo(f"{' and '.join(done)}; calls that wait begin within a minute"))
    return 0


def _described(kind: PauseKind, name: str) -> str:
    return f"the connection {name}" if kind == "connection" else f"the saga name {name}"


def _target(saga: str | None, connection: str | None) -> tuple[PauseKind, str]:
    return ("connection", connection) if connection is not None else ("saga", saga or "")


def _require_target(settings: Settings, kind: PauseKind, name: str) -> None:
    """Raises UsageError if the project has no connection, or no saga, of this name."""
    if kind == "connection":
        settings.connection(name)
        return
    from sagas.project import Project

    Project(settings).definition(name)


async def _with_ledger(settings: Settings, work: Callable[[RunLedger], Awaitable[T]]) -> T:
    from saga_workers.ledger.run_ledger import using_ledger

    async with using_ledger(settings) as ledger:
        return await work(ledger)


async def _pause(ledger: RunLedger, kind: PauseKind, name: str) -> StandingPause | None:
    return next((pause for pause in await ledger.pauses() if (pause.kind, pause.name) == (kind, name)), None)


async def _open_breaker(ledger: RunLedger, kind: PauseKind, name: str) -> StandingPause | None:
    if kind != "connection":
        return None
    return next((breaker for breaker in await ledger.open_breakers() if breaker.name == name), None)
