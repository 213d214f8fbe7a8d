"""Valid inputs that cost much make no task of the workflow that they share with others long."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

from saga_workers.temporal.temporal_client import start_headers, to_header
from sagas.definition.snapshot import to_snapshot
from sagas.project import Project
from sagas.protocol.payloads import BULK_PREFIX, BULK_WORKFLOW, DEFINITION_HEADER
from sagas.settings import load_settings
from tests.helpers.local_worker import running_worker
from tests.helpers.task_seconds import task_seconds as task_seconds
from tests.helpers.waiting import LIMIT
from tests.integration.trust.test_task_durations import HOSTILE, WIDE

STEPS = """
steps:
  - id: look
    uses: require
    with:
      that: "${{ default(input.loops, []).all(a, input.loops.all(b, a + b >= 0)) }}"
      message: a negative number
output: {some: "${{ default(input.rows, []).map(r, r.sku).size() }}"}
"""


async def test_costly_members_do_not_make_the_tasks_of_all_long(
    bank_project: tuple[Project, str], task_seconds: list[float]
) -> None:
    """A client in another language starts them together, where ours give each a workflow of its own."""
    root = Path(bank_project[0].settings.root)
    (root / "wide.saga.yaml").write_text(WIDE.partition("steps:")[0] + STEPS)
    project = Project(load_settings(config=str(root / "saga.toml")))
    costly = {
        "alternatives": HOSTILE["alternatives"](),
        **{f"loops-{number}": HOSTILE["loops"]() for number in range(30)},
        "rows": {"rows": [{"sku": "x" * 20, "number": number} for number in range(5_000)]},
    }
    honest = {f"honest-{number}": {"tree": "x", "loops": [number]} for number in range(20)}
    rows = [[f"{name}-{uuid.uuid4()}", input, {}] for name, input in {**honest, **costly}.items()]
    definition = {"definition": to_snapshot(project.definition("wide"))}
    async with running_worker(project) as client:
        with start_headers({DEFINITION_HEADER: to_header(definition)}):
            bulk = await client.temporal.start_workflow(
                BULK_WORKFLOW,
                {"saga": "wide", "sagas": rows},
                id=f"{BULK_PREFIX}wide-{uuid.uuid4()}",
                task_queue=project.settings.temporal.task_queue,
            )
        result = await asyncio.wait_for(bulk.result(), LIMIT)
        await client.close()
    assert result["counts"] == {"COMPLETED": len(rows)}
    assert max(task_seconds) < 1.0, sorted(task_seconds)[-4:]
