"""A shop over HTTP, with FastAPI: an order and the start of its saga are one transaction.

DATABASE_URL=postgresql+psycopg://… uvicorn app:app --port 8000
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from sagas import enqueue, enqueue_signal

app = FastAPI(title="Shop")
transactions = async_sessionmaker(create_async_engine(os.environ["DATABASE_URL"]))


async def transaction() -> AsyncIterator[AsyncSession]:
    """The transaction of a request: committed when its function has returned, else rolled back."""
    async with transactions.begin() as session:
        yield session


# Committed before the response is sent: nobody is told of an order that is not there.
Session = Annotated[AsyncSession, Depends(transaction, scope="function")]


class Order(BaseModel):
    order: str
    product: str
    quantity: int


@app.post("/orders", status_code=202)
async def place_order(order: Order, session: Session) -> dict[str, Any]:
    """Write the order, and start its saga: both are committed, or neither."""
    values = order.model_dump()
    await session.execute(
        text("insert into orders (id, product, quantity) values (:order, :product, :quantity)"), values
    )
    await enqueue(session, "checkout", values, id=f"order-{order.order}")
    return {"order": order.order, "state": "new"}


@app.post("/orders/{order}/payment", status_code=202)
async def pay_order(order: str, session: Session) -> dict[str, Any]:
    """Write the payment, and signal the saga that waits for it."""
    paid = await session.execute(
        text("update orders set state = 'paid' where id = :order returning id"), {"order": order}
    )
    if paid.first() is None:
        raise HTTPException(404, "there is no such order")
    await enqueue_signal(session, f"order-{order}", "paid")
    return {"order": order, "state": "paid"}


@app.get("/orders/{order}")
async def show_order(order: str, session: Session) -> dict[str, Any]:
    rows = await session.execute(text("select id, state from orders where id = :order"), {"order": order})
    row = rows.first()
    if row is None:
        raise HTTPException(404, "there is no such order")
    return {"order": row.id, "state": row.state}


@app.exception_handler(IntegrityError)
async def refuse(_: Request, __: Exception) -> JSONResponse:
    return JSONResponse({"detail": "the order exists, or its quantity is not positive"}, 409)
