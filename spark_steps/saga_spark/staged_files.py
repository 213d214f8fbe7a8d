"""The staged output of an ancestor, for a step that reads it: from the ledger, never from a listing."""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from saga_spark import ledger
from saga_spark.ledger import OutputRow
from sagas.errors import UsageError


async def staged_files(engine: AsyncEngine, saga_id: str, step: str, output: str | None) -> dict[str, Any]:
    """``files`` and ``schema`` of a step's output: all items of a for_each together.

    Raises UsageError: nothing is staged, or the step has several outputs and ``output`` names none.
    """
    async with engine.connect() as connection:
        found = (await connection.execute(ledger.of_saga(saga_id))).mappings()
        rows = ledger.newest((OutputRow.read(row) for row in found), ("STAGED", "PUBLISHED"))
    rows = [row for row in rows if row.target.step.partition("#")[0] == step]
    names = {row.target.output for row in rows}
    if output is None and len(names) > 1:
        raise UsageError(f"{step} has the outputs {', '.join(sorted(names))}: say which one with `output`")
    rows = [row for row in rows if output in (None, row.target.output)]
    manifests = [row.manifest for row in rows if row.manifest is not None]
    if not manifests:
        raise UsageError(f"the step {step} has no staged output{f' {output}' if output else ''} in this saga")
    return {"files": [file.uri for one in manifests for file in one.files], "schema": manifests[0].schema}
