"""`saga diff` for git revisions places each change at the line of the field that has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from saga_cli.render.project_diff import change_annotations
from saga_cli.revisions.definitions import read_definitions
from sagas.presentation.project_diff import ProjectDefinitions, compare_projects
from sagas.settings import load_settings
from tests.unit.cli.test_project_diff import ACTIONS

SETTINGS = """actions = ["./actions.py"]
[connections.shop]
url = "sqlite:///shop.db"
[kafka]
bootstrap_servers = "127.0.0.1:9"
"""

PLACED = """saga: checkout
id: "c-${{ input.sku }}"
input:
  type: object
  required: [sku]
  properties:
    sku: {type: string}
    count:
      type: integer
      maximum: 7
defaults:
  retry:
    max_attempts: 9
triggers:
  kafka:
    - {topic: paid, signal: paid, id: "c-${{ trigger.value.id }}"}
    - topic: orders
      filter: trigger.value.rate > 1
      input: {sku: "${{ trigger.value.id }}"}
steps:
  - {id: pay, uses: wait, with: {signal: paid, timeout: 1h, on_timeout: reject}}
  - id: reserve
    uses: shop.reserve
    with:
      sku: "${{ input.sku }}"
    timeout: 5s
    compensate:
      uses: shop.release
      retry:
        max_attempts: 3
        initial_interval: 2s
  - id: again
    uses: shop.reserve
    with: {sku: x}
    compensate: shop.release
labels:
  a: b
"""


@pytest.mark.parametrize(
    ("old", "new", "field", "at"),
    [
        ('id: "c-${{ input', 'id: "d-${{ input', "id", 'id: "d-'),
        ("maximum: 7", "maximum: 8", "input.count", "maximum: 8"),
        ("[sku]", "[]", "input.sku", "required: "),
        ("      maximum: 7\n", "", "input.count", "count:"),
        ("rate > 1", "rate > 2", "triggers", "filter: "),
        ('signal: paid, id: "c-', 'signal: paid, id: "d-', "triggers (signals)", "- {topic: paid"),
        ('sku: "${{ input.sku }}"', "sku: y", "with", "sku: y"),
        ("timeout: 5s", "timeout: 6s", "timeout", "timeout: 6s"),
        ("    timeout: 5s\n", "", "timeout", "- id: reserve"),
        ("max_attempts: 3", "max_attempts: 4", "compensate.retry", "max_attempts: 4"),
        ("        initial_interval: 2s\n", "", "compensate.retry", "retry:"),
        ("max_attempts: 9", "max_attempts: 8", "retry", "max_attempts: 8"),
        ("  a: b", "  a: c", "labels", "a: c"),
        ("labels:\n  a: b\n", "", "labels", "saga: checkout"),
        (
            "  - id: again\n    uses: shop.reserve\n    with: {sku: x}\n    compensate: shop.release\n",
            "",
            "step",
            "steps:",
        ),
    ],
)
def test_a_change_is_placed_at_its_field(old: str, new: str, field: str, at: str, tmp_path: Path) -> None:
    (tmp_path / "definitions").mkdir()
    (tmp_path / "actions.py").write_text(ACTIONS.format(name="reserve"))
    config, file = tmp_path / "saga.toml", tmp_path / "definitions" / "checkout.saga.yaml"
    config.write_text(SETTINGS)
    assert PLACED.count(old) == 1

    def read(text: str) -> ProjectDefinitions:
        file.write_text(text)
        return ProjectDefinitions.from_json(read_definitions(load_settings(config=str(config))).to_json())

    difference = compare_projects(read(PLACED), read(PLACED.replace(old, new)))

    [saga] = difference.sagas
    printed = change_annotations(difference, "github", "")
    lines = {int(each.split("line=")[1].split(",")[0]) for each in printed.splitlines() if f", {field}: " in each}
    [line] = {saga.new.line_of(change) for change in saga.changes if saga.new and change.field == field}
    assert (at in file.read_text().splitlines()[line - 1], lines) == (True, {line}), printed
