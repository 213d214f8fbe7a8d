"""`uses: reconcile` on a worker: a step that is refused when its two sides do not say the same."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from saga_activities.attempt import Attempt
from saga_spark.job import Input
from saga_spark.progress import Progress
from saga_spark.reconcile.spec import Spec
from saga_spark.settings import SparkSettings
from saga_spark.stage_area import StageArea
from sagas.errors import Rejected

SIDES = ("left", "right")

TOLD = 3
"""Differences of which a refusal shows the values."""

Staged = Callable[[str, str | None], Awaitable[Mapping[str, Any]]]
"""The files of a step's staged output: (step, output) → ``{"files": […]}``."""


class Runs(Protocol):
    """The runner, as far as this step needs it."""

    async def run(
        self, task: str, request: Mapping[str, Any], *, tag: str, on_progress: Callable[[dict[str, Any]], None]
    ) -> dict[str, Any]: ...


async def reconcile_step(
    runner: Runs,
    settings: SparkSettings,
    arguments: Mapping[str, Any],
    attempt: Attempt,
    staged: Staged | None = None,
    key: str = "",
) -> dict[str, Any]:
    """The result of the step: verdict, counts, fingerprints and samples. ``key`` is the same for all attempts.

    Raises Rejected when the sides differ, unless ``severity`` is ``warn``; UsageError for wrong arguments.
    """
    Spec.parse(arguments)
    sides = {name: Input.parse(name, arguments[name]) for name in SIDES}
    known: dict[str, Any] = {}
    for name, side in sides.items():
        if side.kind == "step" and staged is not None:
            known[name] = await staged(side.values["step"], side.values.get("output"))
    folder = f"{settings.stage}/reconcile/{uuid.uuid4().hex}"
    request = {
        "inputs": {name: {"kind": side.kind, "values": dict(side.values)} for name, side in sides.items()},
        "folder": folder,
        "known": known,
        "arguments": dict(arguments),
    }
    progress = Progress(attempt)
    progress.say("comparing")
    tag = f"reconcile-{hashlib.sha256(key.encode()).hexdigest()[:32]}-e{uuid.uuid4().int}"
    try:
        found = await runner.run("reconcile", request, tag=tag, on_progress=progress.add)
    finally:
        await asyncio.to_thread(StageArea(settings.stage).remove, folder)
    if found["verdict"] == "different" and arguments.get("severity", "error") == "error":
        raise Rejected(found["message"], counts=found["counts"], samples=found["samples"][:TOLD])
    return found
