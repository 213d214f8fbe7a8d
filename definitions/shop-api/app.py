"""A shop over HTTP, on Starlette: an order and the start of its saga are one transaction.

DATABASE_URL=postgresql+psycopg://… uvicorn app:app --port 8000
"""

from __future__ import annotations

import os

from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from sagas import enqueue, enqueue_signal

transactions = async_sessionmaker(create_async_engine(os.environ["DATABASE_URL"]))


async def place_order(request: Request) -> JSONResponse:
    """Write the order, and start its saga: both are committed, or neither."""
    body = await request.json()
    order = {"order": body["order"], "product": body["product"], "quantity": body["quantity"]}
    try:
        async with transactions.begin() as session:
            await session.execute(
                text("insert into orders (id, product, quantity) values (:order, :product, :quantity)"), order
            )
            await enqueue(session, "checkout", order, id=f"order-{order['order']}")
    except IntegrityError:
        return JSONResponse({"error": "the order exists, or its quantity is not positive"}, 409)
    return JSONResponse({"order": order["order"], "state": "new"}, 202)


async def pay_order(request: Request) -> JSONResponse:
    """Write the payment, and signal the saga that waits for it."""
    order = request.path_params["order"]
    async with transactions.begin() as session:
        paid = await session.execute(
            text("update orders set state = 'paid' where id = :order returning id"), {"order": order}
        )
        if paid.first() is None:
            return JSONResponse({"error": "there is no such order"}, 404)
        await enqueue_signal(session, f"order-{order}", "paid")
    return JSONResponse({"order": order, "state": "paid"}, 202)


async def show_order(request: Request) -> JSONResponse:
    async with transactions() as session:
        rows = await session.execute(
            text("select id, state from orders where id = :order"), {"order": request.path_params["order"]}
        )
        row = rows.first()
    return JSONResponse({"order": row.id, "state": row.state} if row else {"error": "there is no such order"})


app = Starlette(
    routes=[
        Route("/orders", place_order, methods=["POST"]),
        Route("/orders/{order}/payment", pay_order, methods=["POST"]),
        Route("/orders/{order}", show_order),
    ]
)
