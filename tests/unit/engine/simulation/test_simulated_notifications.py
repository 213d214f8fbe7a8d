"""Notifications without a server: a simulated run lists them without sending; `saga explain` names them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from saga_cli import main
from sagas.definition.loader import parse_text
from sagas.definition.parser.draft import ProjectContext
from sagas.simulation import Script, failure_points, simulate

SAGA = """
saga: told
input: {type: object, required: [n], properties: {n: {type: integer}}}
steps:
  - {id: look, uses: http, with: {url: "http://shop.example/stock"}}
  - {id: check, uses: require, with: {that: input.n < 3}}
notify:
  - when: [completed, compensated]
    uses: http
    with: {url: "http://shop.example/hook", json: {how: "${{ saga.state }}", n: "${{ input.n }}"}}
  - {when: completed, uses: http, with: {url: "http://shop.example/hook", json: "${{ steps.look.result.no.such }}"}}
"""


def test_a_simulated_run_knows_who_would_be_told() -> None:
    definition, _ = parse_text(SAGA, "told.saga.yaml", ProjectContext())
    assert definition is not None
    good = simulate(definition, {"n": 1}, Script(results={"look": {"no": {}}}))
    first, second = good.notifications
    assert (good.state, first["id"], first["when"]) == ("COMPLETED", "notify-0-completed", "completed")
    assert first["with"]["json"] == {"how": "COMPLETED", "n": 1}
    assert (second["with"], second["problem"].startswith("notify.1.json: ")) == (None, True)
    bad = simulate(definition, {"n": 7})
    assert [(notification["when"], notification["with"]["json"]["how"]) for notification in bad.notifications] == [
        ("compensated", "COMPENSATED")
    ]
    without, _ = parse_text(SAGA.partition("notify:")[0], "told.saga.yaml", ProjectContext())
    assert without is not None
    assert failure_points(definition, {"n": 1}) == failure_points(without, {"n": 1}), "a table without them is the same"


def test_explain_lists_notifications(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "definitions").mkdir()
    (tmp_path / "definitions" / "told.saga.yaml").write_text(SAGA)
    (tmp_path / "saga.toml").write_text("")
    assert main.run(["explain", "told", "--config", str(tmp_path)]) == 0
    sentence = "✉ completed, compensated: http, at most 7 attempts within 2.6 h, then given up"
    assert sentence in " ".join(capsys.readouterr().out.split())
    assert main.run(["explain", "told", "--config", str(tmp_path), "--json"]) == 0
    [first, _] = json.loads(capsys.readouterr().out)["notify"]
    assert first == {"when": ["completed", "compensated"], "uses": "http", "intervals": [1, 5, 30, 300, 1800, 7200]}
