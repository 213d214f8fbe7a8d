"""No valid input makes a workflow task long, in CPU: Temporal repeats one of two seconds for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from sagas.definition.input_validation import validate_input
from sagas.project import Project
from tests.helpers.local_worker import make_project, running_worker
from tests.helpers.nested_lists import nested_list
from tests.helpers.processes import TemporalServer
from tests.helpers.sampling import mostly_slow
from tests.helpers.task_seconds import task_seconds as task_seconds
from tests.helpers.waiting import LIMIT
from tests.integration.trust.conftest import Shop

WIDE = """
saga: wide
input:
  type: object
  properties:
    tree: {$ref: "#/$defs/tree"}
    numbers: {type: array, items: {type: integer}}
    rows: {type: array, uniqueItems: true, items: {type: object, properties: {sku: {type: string, pattern: "^x+y?$"}}}}
    loops: {type: array, items: {type: integer}}
  $defs:
    tree:
      anyOf:
        - {type: array, items: {$ref: "#/$defs/tree"}, contains: {const: 0}}
        - {type: array, items: {$ref: "#/$defs/tree"}}
        - {type: string}
steps:
  - id: say
    uses: say
    with: {text: "${{ string(default(input.loops, []).all(a, input.loops.all(b, a + b >= 0))) }}"}
    effect: none
  - {id: again, uses: say, with: {text: "${{ string(default(input.numbers, []).size()) }}"}, effect: none}
output: {some: "${{ default(input.rows, []).map(r, r.sku).size() }}"}
"""


HOSTILE: dict[str, Callable[[], Any]] = {
    "alternatives": lambda: {"tree": nested_list(13)},
    "numbers": lambda: {"numbers": [1] * 240_000},
    "rows": lambda: {"rows": [{"sku": "x" * 20, "number": number} for number in range(15_000)]},
    "loops": lambda: {"loops": list(range(300))},
    "objects": lambda: {"data": [{"a": {}}] * 80_000},
    "keys": lambda: {"data": {str(number): number for number in range(80_000)}},
    "levels": lambda: {"data": [nested_list(95)] * 2_500},
    "decimals": lambda: {"data": [Decimal("0.1")] * 240_000},
    "long decimals": lambda: {"data": [Decimal("0." + "1" * 990)] * 1_000},
    "long integers": lambda: {"data": [10**3_900] * 250},
    "texts": lambda: {"data": ["x"] * 240_000},
    "long text": lambda: {"data": "x" * 1_000_000},
    "escapes": lambda: {"data": ["\n" * 1_000] * 500},
    "pairs": lambda: {"data": "\U0001f600" * 250_000},
    "exponents": lambda: {"data": [Decimal("1e999")] * 160_000},
    "whole with exponents": lambda: {"numbers": [Decimal("1e999")] * 1_500},
    "whole": lambda: {"numbers": [Decimal("1.0")] * 150_000},
}


@pytest.fixture
def project(shop: Shop, tmp_path: Path, temporal: TemporalServer) -> Project:
    return make_project(tmp_path / "wide", {"wide": WIDE}, shop.actions, address=temporal.address)


@pytest.mark.parametrize("name", mostly_slow(HOSTILE, quick=["alternatives", "rows", "loops"]))
async def test_a_valid_input_makes_no_workflow_task_long(
    project: Project, task_seconds: list[float], name: str
) -> None:
    value = HOSTILE[name]()
    assert validate_input(project.definition("wide"), value)[1] == []
    async with running_worker(project) as client:
        run = await client.start("wide", value)
        await asyncio.wait_for(run.result(), LIMIT)
        foreign = await client.temporal.start_workflow(
            "wide", value, id=f"foreign-{run.id}", task_queue=project.settings.temporal.task_queue
        )
        await asyncio.wait_for(foreign.result(), LIMIT)
    assert len(task_seconds) >= 4
    assert max(task_seconds) < 1.0, sorted(task_seconds)[-4:]
