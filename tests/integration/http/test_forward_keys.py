"""The key of the forward call in undo, confirm and probe, and arguments that Python reserves, on a real server."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sagas import Rejected, Step, action
from sagas.settings import HttpService
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.payment_server import PaymentServer
from tests.helpers.processes import TemporalServer

MOVE = """
saga: move
input: {type: object, required: [lines, from, fail], properties: {lines: {type: array}}}
steps:
  - id: hold
    for_each: ${{ input.lines }}
    uses: http
    with: {connection: crm, method: POST, path: /echo, json: {id: "${{ step.key }}"}}
    compensate:
      uses: http
      with: {connection: crm, method: DELETE, path: /echo, query: {id: "${{ step.forward_key }}"}}
    confirm:
      uses: http
      with: {connection: crm, method: PATCH, path: /echo, query: {id: "${{ step.forward_key }}"}}
  - id: move
    uses: stock.move
    with: {from: "${{ input.from }}", to: B1, note: "${{ saga.name }}", in: 3}
    compensate: stock.back
  - id: check
    uses: require
    with: {that: "${{ !input.fail }}"}
"""


async def test_an_effect_under_the_forward_key_is_found(
    temporal: TemporalServer, server: PaymentServer, tmp_path: Path
) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []

    @action("stock.move")
    async def move(step: Step, from_: str, to: str, **more: Any) -> None:
        calls.append((step.forward_key, {"from": from_, "to": to, **more}))

    @action("stock.back")
    def back(step: Step, /, **given: Any) -> None:
        calls.append((f"{step.op} {step.forward_key}", given))

    crm = HttpService(name="crm", root=tmp_path, url_setting=server.url, remembers_rejections=False)
    project = make_project(tmp_path, {"move": MOVE}, [move, back], address=temporal.address, options={"crm": crm})
    assert project.diagnostics == []
    id = f"move-{uuid.uuid4()}"
    given = {"lines": ["a", "b"], "from": "A3", "fail": True}
    async with running_worker(project) as client:
        await client.start("move", given, id=id)
        assert (await finished(client, id))["state"] == "COMPENSATED"
        await client.start("move", {**given, "fail": False}, id=id, again=True)
        assert (await finished(client, id))["state"] == "COMPLETED"

    requests = server.ledger()["requests"]
    made = [json.loads(request["body"])["id"] for request in requests if request["method"] == "POST"]
    assert sorted(made) == [f"{id}/hold#0", f"{id}/hold#0@2", f"{id}/hold#1", f"{id}/hold#1@2"]
    assert addressed(requests, "DELETE") == [f"{id}/hold#0", f"{id}/hold#1"]
    assert addressed(requests, "PATCH") == [f"{id}/hold#0@2", f"{id}/hold#1@2"]
    arguments = {"from": "A3", "to": "B1", "note": "move", "in": 3}
    expected = [(f"{id}/move", arguments), (f"undo {id}/move", arguments), (f"{id}/move@2", arguments)]
    assert calls == expected


def addressed(requests: list[dict[str, Any]], method: str) -> list[str]:
    return sorted(
        parse_qs(urlsplit(request["path"]).query)["id"][0] for request in requests if request["method"] == method
    )


async def test_probes_and_alternates_get_the_forward_key(temporal: TemporalServer, tmp_path: Path) -> None:
    seen: list[tuple[str, str, str]] = []

    @action("hold")
    async def hold(step: Step) -> None:
        seen.append((step.op, step.key, step.forward_key))
        if step.op == "do":
            raise ConnectionError("lost")
        if step.op == "undo":
            raise Rejected("not here")

    @action("told")
    async def reported(step: Step, key: str) -> None:
        seen.append((step.op, step.key, key))

    definition = """
        saga: asked
        steps:
          - id: a
            uses: hold
            retry: {max_attempts: 1}
            settle: 10ms
            probe: {uses: told, with: {key: "${{ step.forward_key }}"}, done: "false"}
            compensate: [hold, {uses: told, with: {key: "${{ step.forward_key }}"}}]
    """
    project = make_project(tmp_path, {"asked": definition}, [hold, reported], address=temporal.address)
    id = f"asked-{uuid.uuid4()}"
    async with running_worker(project) as client:
        await client.start("asked", {}, id=id)
        assert (await finished(client, id))["state"] == "COMPENSATED"
    assert seen[0] == ("do", f"{id}/a", f"{id}/a")
    assert ("probe", f"{id}/a", f"{id}/a") in seen
    assert seen[-2:] == [("undo", f"{id}/a/undo", f"{id}/a"), ("undo", f"{id}/a/undo.1", f"{id}/a")]
