"""Holding a lease: renewed in the background until it is given back, or lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator

from sqlalchemy.exc import SQLAlchemyError

from saga_workers.relay.lease import RENEWAL, TERM, Lease, Leases

log = logging.getLogger("saga.relay")

_PATIENCE = RENEWAL


@contextlib.asynccontextmanager
async def holding(leases: Leases, lease: Lease) -> AsyncIterator[asyncio.Event]:
    """Renew the lease as long as the block runs; the event is set when it is lost. Given back at the end."""
    lost = asyncio.Event()
    renewing = asyncio.create_task(_renew(leases, lease, lost))
    try:
        yield lost
    finally:
        renewing.cancel()
        await asyncio.wait({renewing})
        if not lost.is_set():
            try:
                async with asyncio.timeout(_PATIENCE):
                    await leases.release(lease)
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                log.debug("the lease of shard %d was not given back, and expires: %s", lease.shard, error)


async def _renew(leases: Leases, lease: Lease, lost: asyncio.Event) -> None:
    good_until = time.monotonic() + TERM
    while not lost.is_set():
        await asyncio.sleep(RENEWAL)
        asked = time.monotonic()
        try:
            async with asyncio.timeout(_PATIENCE):
                ours = await leases.renew(lease)
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            log.debug("the lease of shard %d was not renewed: %s", lease.shard, error)
            if time.monotonic() > good_until:
                lost.set()
            continue
        good_until = asked + TERM
        if not ours:
            lost.set()
