"""What a relay does beside publishing, for each outbox, at its own pace."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError

from sagas.errors import SagaError
from workers.databases import database_says
from workers.relay.outbox import Outbox

log = logging.getLogger("saga.relay")

PORTION = 500
"""Events deleted in one statement, so that none holds many locks."""


@dataclass(frozen=True, slots=True)
class Chore:
    """Something done to an outbox every ``period`` seconds. ``name`` completes "… of shop failed"."""

    name: str
    period: float
    work: Callable[[Outbox], Awaitable[None]]


async def keep_doing(chore: Chore, outbox: Outbox) -> None:
    """Now, and then every period. Trouble is a line in the log, and the next round tries again."""
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


CLEAN_UP = Chore("the clean-up", 60.0, forget_old)
