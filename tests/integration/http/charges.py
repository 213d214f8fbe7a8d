"""A call of the payment service."""

from __future__ import annotations

from typing import Any

from saga_activities.http import HttpConnection, run_http
from sagas.protocol.outcomes import Outcome

KEY = "checkout-1/charge"
CHARGE = {"path": "/charges", "method": "POST", "json": {"account": "h-1", "amount": "12.50"}}


async def call(connection: HttpConnection | None, arguments: dict[str, Any] = CHARGE, **options: Any) -> Outcome:
    return await run_http(arguments, **{"key": KEY, "connection": connection, "timeout": 5.0, **options})
