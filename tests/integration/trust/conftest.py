"""A project that records what its actions do, for clients of Temporal that are not its own."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from saga_workers.client import Client
from saga_workers.temporal.temporal_client import start_headers, to_header
from sagas import Rejected
from sagas.actions.registry import action
from sagas.definition.loader import parse_text
from sagas.definition.snapshot import to_snapshot
from sagas.project import Project
from sagas.protocol.payloads import DEFINITION_HEADER, SIGNATURE_HEADER
from sagas.protocol.signed_start import sign_start
from sagas.settings.worker import WorkerSettings
from tests.helpers.local_worker import make_project
from tests.helpers.processes import TemporalServer

OWN = """
saga: own
input: {type: object, required: [text], properties: {text: {type: string, maxLength: 5}}}
steps:
  - {id: say, uses: say, with: {text: "${{ input.text }}"}, effect: none}
"""

GREETING = """
saga: greeting
input: {type: object, properties: {text: {type: string, default: hello}}}
steps:
  - {id: say, uses: say, with: {text: "${{ input.text }}"}, effect: none}
"""

WAITING = """
saga: waiting
steps:
  - {id: approval, uses: wait, with: {signal: approved}}
  - {id: say, uses: say, with: {text: "${{ vars.text }}"}, effect: none}
"""

STUCK = """
saga: stuck
steps:
  - {id: pivot, uses: say, with: {text: pivot}, pivot: true}
  - {id: broken, uses: broken, with: {text: own}}
"""

MOVING = """
saga: moving
steps:
  - {id: debit, uses: say, with: {text: debit}, compensate: {uses: say, with: {text: refund}}}
  - {id: approval, uses: wait, with: {signal: approved}}
  - {id: credit, uses: say, with: {text: credit}, compensate: {uses: say, with: {text: withdraw}}}
"""


PAIR = """
saga: pair
steps:
  - {id: debit, uses: say, with: {text: debit}, compensate: {uses: say, with: {text: refund}}}
  - {id: credit, uses: say, with: {text: credit}, compensate: {uses: say, with: {text: withdraw}}}
"""

OUTER = """
saga: outer
steps:
  - {id: open, uses: say, with: {text: open}, compensate: {uses: say, with: {text: close}}}
  - {id: move, uses: saga, with: {name: moving, input: {}}}
  - {id: after, uses: say, with: {text: after}, compensate: {uses: say, with: {text: before}}}
"""


class Shop:
    """A project whose actions record what they do."""

    def __init__(self, folder: Path, server: TemporalServer) -> None:
        self.said: list[str] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

        async def say(text: str) -> None:
            self.said.append(text)
            await self.may_answer.wait()

        async def broken(text: str) -> None:
            if text == "own":
                raise Rejected("broken")
            self.said.append(text)

        self.actions = [
            action("say")(say),
            action("broken")(broken),
        ]
        texts = {
            "own": OWN,
            "greeting": GREETING,
            "waiting": WAITING,
            "stuck": STUCK,
            "moving": MOVING,
            "pair": PAIR,
            "outer": OUTER,
        }
        self.project = make_project(folder, texts, self.actions, address=server.address, variables={"text": "hello"})

    def with_keys(self, *keys: str, accept: str = "signed", earlier: Sequence[str] = ()) -> Project:
        """The project as on another machine: with these keys, and without its key file."""
        settings = WorkerSettings(
            definition_key=" ".join(keys),  # pyright: ignore[reportArgumentType]
            accept=accept,  # pyright: ignore[reportArgumentType]
            earlier_definitions=tuple(earlier),
        )
        return Project(self.project.settings.model_copy(update={"worker": settings}), self.project.actions)

    def header(self, text: str | None = None, saga: str = "own", vars: Mapping[str, Any] | None = None) -> Any:
        """The header of the definition with this text, or of the project's own."""
        definition = self.project.definition(saga)
        if text is not None:
            parsed, diagnostics = parse_text(text, "forged.saga.yaml", self.project.context)
            assert parsed is not None, diagnostics
            definition = parsed
        sent = {"definition": to_snapshot(definition), "vars": vars or {"text": "hello"}, "attributes": []}
        return to_header(sent)

    async def start(
        self,
        client: Client,
        saga: str,
        input: Any,
        header: Any,
        *,
        keys: Any = None,
        id: str | None = None,
        signature: Any = None,
        **options: Any,
    ) -> Any:
        """Start it as any client of Temporal can. ``keys`` sign this start; else ``signature`` is sent with it."""
        id = id or f"{saga}-{uuid.uuid4()}"
        headers = {DEFINITION_HEADER: header}
        if keys is not None:
            signature = sign_start(keys, id, header.data, {id: input}, at=time.time())
        if signature is not None:
            headers[SIGNATURE_HEADER] = signature
        queue = self.project.settings.temporal.task_queue
        with start_headers(headers):
            return await client.temporal.start_workflow(saga, input, id=id, task_queue=queue, **options)


@pytest.fixture
def shop(tmp_path: Path, temporal: TemporalServer) -> Shop:
    return Shop(tmp_path / "shop", temporal)


@pytest.fixture
def own_temporal(tmp_path: Path) -> Iterator[TemporalServer]:
    """A server for a test that leaves many, large or unreadable runs, which all later tests would list or try."""
    with TemporalServer(tmp_path / "temporal") as server:
        yield server
