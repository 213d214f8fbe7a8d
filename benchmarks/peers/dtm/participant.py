"""The participant of DTM's saga, for uvicorn: `uvicorn benchmarks.peers.dtm.participant:app`.

`/do` and `/undo` have DTM's barrier: its two rows are those of :class:`benchmarks.peers.accounts.BarrierAccounts`, with
the transaction and the branch as their key. 409 is DTM's answer for what cannot be done. The database is DATABASE_URL.
"""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.parse import parse_qs

from benchmarks.peers.accounts import BarrierAccounts, ImpossibleEffect, open_pool

pool = open_pool(os.environ["DATABASE_URL"])
accounts = BarrierAccounts(pool)


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        raise NotImplementedError(scope["type"])
    if pool.closed:
        await pool.open()
    body, is_complete = b"", False
    while not is_complete:
        part = await receive()
        body, is_complete = body + part["body"], not part.get("more_body")
    branch = {name: values[0] for name, values in parse_qs(scope["query_string"].decode()).items()}
    call, status = json.loads(body), 200
    key = f"{branch['gid']}/{branch['branch_id']}"
    if scope["path"] == "/do":
        try:
            await accounts.take(key, call["account"], call["amount"])
        except ImpossibleEffect:
            status = 409
    else:
        await accounts.give_back(key, call["account"], call["amount"])
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})
