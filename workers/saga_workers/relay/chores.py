"""What a relay does beside publishing, for each outbox, at its own pace."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError

from saga_workers.databases import database_says
from saga_workers.relay.outbox import Outbox
from sagas.errors import SagaError
from sagas.settings import Settings

log = logging.getLogger("saga.relay")

_BEGIN = 1.0
"""Seconds: publishing comes first."""

PORTION = 500
"""Events deleted in one statement, so that none holds many locks."""


@dataclass(frozen=True, slots=True)
class Chore:
    """Something done to an outbox every ``period`` seconds. ``name`` completes "… of shop failed"."""

    name: str
    period: float
    work: Callable[[Outbox], Awaitable[object]]


async def keep_doing(chore: Chore, outbox: Outbox) -> None:
    """Soon, and then every period. Trouble is a line in the log, and the next round tries again."""
    await asyncio.sleep(_BEGIN)
    while True:
        try:
            await chore.work(outbox)
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            log.warning("%s of %s failed: %s", chore.name, outbox.name, database_says(error))
        except SagaError as error:
            log.warning("%s of %s failed: %s", chore.name, outbox.name, error.message)
        await asyncio.sleep(chore.period)


async def forget_old(outbox: Outbox) -> None:
    """Delete what was published or dropped longer ago than the retention, of the shards that are ours."""
    before = time.time() - outbox.settings.retention
    for shard, told in outbox.states.items():
        if told.state != "publishing":
            continue
        gone = PORTION
        while gone >= PORTION:
            gone = await outbox.rows.forget(shard, before, PORTION)
            await asyncio.sleep(0.05)


def chores(settings: Settings) -> Sequence[Chore]:
    """All that a relay of the project does beside publishing."""
    return Chore("the clean-up", 60.0, forget_old), _check_back(settings)


def _check_back(settings: Settings) -> Chore:
    from saga_workers.relay.check_back import PERIOD, CheckBack
    from saga_workers.temporal_client import connect

    asking = CheckBack(lambda: connect(settings))
    return Chore("the check-back", PERIOD, lambda outbox: asking.check(outbox.name, outbox.rows.engine))
