"""Standing pauses in tests: ordered in the ledger, and seen in the views of the sagas that wait."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.ledger.pauses import begin_pause
from saga_workers.client import Client
from sagas.errors import UsageError
from sagas.protocol.saga_view import SagaView
from sagas.protocol.standing_pause import PauseKind
from tests.helpers.waiting import until

CHARGE = """
      - id: charge
        uses: http
        with: {connection: crm, method: POST, path: /charges, json: {account: a, amount: 1}, result: response.json.id}
        retry: {max_attempts: 2, initial_interval: 10ms}
        compensate:
          uses: http
          with: {connection: crm, method: POST, path: /refunds, json: {charge: "${{ steps.charge.result }}"}}
"""
"""A step that charges an account of the payment server, connection `crm`."""


async def pause(orders: AsyncEngine, kind: PauseKind, name: str) -> None:
    assert await begin_pause(orders, kind, name, who="mia", reason="a move")


async def held(client: Client, saga_id: str, *ids: str) -> SagaView:
    """Wait until exactly these are held back by a standing pause."""

    async def seen() -> SagaView | None:
        try:
            view = await client.view(saga_id)
        except UsageError:  # its parent has not started it yet
            return None
        return view if view.paused is not None and view.paused.kind and set(view.paused.held) == set(ids) else None

    return await until(seen)


async def asked_again(client: Client, saga_id: str, times: int) -> None:
    """Wait until a step has been held back this many times."""

    async def seen() -> bool:
        view = await client.view(saga_id)
        return any(((step.error and step.error.details) or {}).get("uncounted", 0) >= times for step in view.steps)

    await until(seen)
