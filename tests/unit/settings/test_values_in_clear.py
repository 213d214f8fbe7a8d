"""`saga doctor` says which sagas have `x-sensitive` values that nobody encrypts."""

from __future__ import annotations

from pathlib import Path

import pytest

from saga_workers.doctor.checks import _values_in_clear
from sagas.project import Project
from sagas.settings.loader import load_settings

CARD = """
saga: pay
input: {properties: {card: {type: string, x-sensitive: true}}}
steps: [{id: go, uses: wait, with: {signal: go}}]
"""


@pytest.mark.parametrize(
    ("definition", "settings", "names"),
    [
        (CARD, "", ["pay"]),
        (CARD, '[codec]\nkey = {env = "KEY"}\n', []),
        (CARD.replace(", x-sensitive: true", ""), "", []),
    ],
)
def test_values_in_clear(tmp_path: Path, definition: str, settings: str, names: list[str]) -> None:
    (tmp_path / "saga.toml").write_text(f'definitions = ["."]\n{settings}', encoding="utf-8")
    (tmp_path / "pay.saga.yaml").write_text(definition, encoding="utf-8")
    results = _values_in_clear(Project(load_settings(tmp_path / "saga.toml")))
    assert [(each.check, each.ok, each.help) for each in results] == [
        ("codec", None, "set [codec] key to encrypt them") for _ in names
    ]
    assert all(name in each.message for name, each in zip(names, results, strict=True))
