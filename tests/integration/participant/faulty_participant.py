"""A participant over HTTP that keeps all of its promises, or all but the one of a named check."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from saga_workers.participant.trial import COPIES

EFFECT_SECONDS = 0.05
ARRIVAL_SECONDS = 0.25
"""How long an effect waits for duplicates of its request, on a machine that is busy."""


class FaultyParticipant:
    """``fault`` is the name of the check that it fails; None: it passes all of them.

    An effect waits a moment until ``awaited`` requests of its key have arrived.
    """

    def __init__(self, fault: str | None = None, *, awaited: int = 1) -> None:
        self.fault = fault
        self.awaited = {"concurrent duplicates": 2, "in progress": 2, "same key twice": COPIES}.get(
            fault or "", awaited
        )
        self.arrived: Counter[str] = Counter()
        self.arrival = asyncio.Condition()
        self.app = Starlette(
            routes=[
                Route("/reserve", self.on_reserve, methods=["POST"]),
                Route("/release", self.on_release, methods=["POST"]),
                Route("/confirm", self.on_confirm, methods=["POST"]),
                Route("/count", self.on_count),
            ]
        )
        self.responses: dict[str, tuple[Any, dict[str, Any]]] = {}
        self.running: dict[str, tuple[Request, asyncio.Future[None]]] = {}
        self.effects: dict[int, str] = {}
        self.refused: set[str] = set()
        self.undone: set[str] = set()
        self.rejected: set[str] = set()
        self.confirmed: set[str] = set()
        self.ids = itertools.count(1)
        self.last_request: Any = None

    async def on_reserve(self, request: Request) -> JSONResponse:
        key, body = request.headers["idempotency-key"], await request.json()
        await self.arrive(key)
        first, end = self.running.get(key, (None, None))
        # The fault must not show in other checks: only a request whose client has gone is in progress.
        if first is not None and self.fault == "in progress" and await first.is_disconnected():
            return JSONResponse({"error": "in progress"}, 409)
        awaited = None if self.fault == "concurrent duplicates" else end
        if awaited is not None:
            await awaited
        # The fault must not show in other checks: only a request that is exactly like the one before is repeated.
        is_repeated = self.fault == "same key twice" and awaited is None and self.last_request == (key, body)
        self.last_request = (key, body)
        if key in self.refused:
            return JSONResponse({"error": "undone"}, 409)
        if key in self.rejected and self.fault != "remembered rejection":
            return JSONResponse({"error": "at most 100"}, 422)
        if key not in self.responses and body["quantity"] > 100:
            self.rejected.add(key)
            return JSONResponse({"error": "at most 100"}, 422)
        if key in self.responses:
            arguments, response = self.responses[key]
            if arguments != body and self.fault != "same key, other arguments":
                return JSONResponse(
                    {"error": "other arguments"}, 422 if self.fault == "rejects other arguments" else 400
                )
            if arguments == body and not is_repeated:
                return JSONResponse(response, 201)
        done = asyncio.get_running_loop().create_future()
        self.running[key] = (request, done)
        try:
            return await self.effect(request, key, body)
        finally:
            self.running.pop(key, None)
            done.set_result(None)

    async def arrive(self, key: str) -> None:
        async with self.arrival:
            self.arrived[key] += 1
            self.arrival.notify_all()

    async def effect(self, request: Request, key: str, body: Any) -> JSONResponse:
        await asyncio.sleep(EFFECT_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ARRIVAL_SECONDS), self.arrival:
                await self.arrival.wait_for(lambda: self.arrived[key] >= self.awaited)
        id = next(self.ids)
        self.effects[id] = key
        if not (self.fault == "response cut off" and await request.is_disconnected()):
            self.responses[key] = (body, {"id": id})
        return JSONResponse({"id": id}, 201)

    async def on_release(self, request: Request) -> JSONResponse:
        own, key = request.headers["idempotency-key"], request.headers["saga-undoes"]
        if own in self.responses and self.fault != "undo twice":
            return JSONResponse(self.responses[own][1])
        released = [id for id, owner in self.effects.items() if owner == key]
        for id in released:
            del self.effects[id]
        self.undone.add(key)
        seen = key in self.responses
        if self.fault == ("do after undo" if seen else "undo before do"):
            self.responses.pop(key, None)
        else:
            self.refused.add(key)
        self.responses[own] = (None, {"released": len(released), "receipt": next(self.ids)})
        return JSONResponse(self.responses[own][1])

    async def on_confirm(self, request: Request) -> JSONResponse:
        key = request.headers["saga-confirms"]
        if key in self.undone and self.fault != "confirm after undo":
            return JSONResponse({"error": "undone"}, 409)
        if key in self.confirmed and self.fault == "confirm twice":
            return JSONResponse({"error": "it is confirmed"}, 409)
        self.confirmed.add(key)
        return JSONResponse({"confirmed": True})

    async def on_count(self, _: Request) -> JSONResponse:
        return JSONResponse(len(self.effects))
