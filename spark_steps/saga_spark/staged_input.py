"""The staged output of a step as the input of a later one: always from its output records, never from a listing."""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from saga_spark.output_records import OutputRow, latest_generations, select_outputs_of_saga
from sagas.errors import UsageError


async def read_staged_files(engine: AsyncEngine, saga_id: str, step: str, output: str | None) -> dict[str, Any]:
    """``files`` and ``schema`` of a step's staged output; the items of a for_each are combined.

    Raises UsageError: nothing is staged, or the step has several outputs and ``output`` names none.
    """
    async with engine.connect() as connection:
        outputs_of_saga = (await connection.execute(select_outputs_of_saga(saga_id))).mappings()
        rows = latest_generations((OutputRow.from_row(row) for row in outputs_of_saga), ("STAGED", "PUBLISHED"))
    rows = [row for row in rows if row.target.step.partition("#")[0] == step]
    names = {row.target.output for row in rows}
    if output is None and len(names) > 1:
        raise UsageError(f"the step {step} has the outputs {', '.join(sorted(names))}; select one with `output`")
    rows = [row for row in rows if output in (None, row.target.output)]
    manifests = [row.manifest for row in rows if row.manifest is not None]
    if not manifests:
        raise UsageError(f"the step {step} has no staged output{f' {output}' if output else ''} in this saga")
    return {"files": [file.uri for manifest in manifests for file in manifest.files], "schema": manifests[0].schema}
