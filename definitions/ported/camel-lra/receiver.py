"""The train service, whose seal and stored answers are those of `@participant`. `python receiver.py [PORT]`"""

from __future__ import annotations

import sys

import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from sagas import Command, Rejected, http_app, participant


@participant("train-commands", connection="shop")
class Trains:
    async def do(self, command: Command, train: str) -> dict:
        row = await command.sql.one("select count(*) as taken from seat where train = :train", train=train)
        if row.taken >= 50:
            raise Rejected("no seat is free", train=train)
        await command.sql.execute(
            "insert into seat values (:key, :train, :number, 'reserved')",
            key=command.key,
            train=train,
            number=row.taken + 1,
        )
        return {"number": row.taken + 1}

    async def undo(self, command: Command) -> None:
        await command.sql.execute("delete from seat where key = :key", key=command.key)

    async def confirm(self, command: Command) -> None:
        await command.sql.execute("update seat set state = 'complete' where key = :key", key=command.key)


async def ready(_: object) -> PlainTextResponse:
    return PlainTextResponse("ready")


app = Starlette(routes=[Route("/", ready), Mount("/", http_app(Trains))])

if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8797
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
