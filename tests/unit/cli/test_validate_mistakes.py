"""`saga validate` reports wrong settings and modules that cannot be imported next to everything else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.forked_commands import run_command

SETTINGS = """definitions = ["."]
actions = ["./broken.py", "./good.py", "nowhere.actions"]
retries = 3
[connections.shop]
url = "sqlite:///shop.db"
kindd = "sql"
[kafka]
batch = "many"
"""
DEFINITION = """saga: order
steps:
  - {id: take, uses: shop.take, with: {quantty: 1}, pivot: true}
  - {id: tell, uses: mail.tell, need: [take]}
"""
GOOD = """from sagas import action
@action("shop.take", connection="shop")
async def take(step, quantity: int) -> None: ...
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "saga.toml").write_text(SETTINGS)
    (tmp_path / "order.saga.yaml").write_text(DEFINITION)
    (tmp_path / "broken.py").write_text("raise RuntimeError('no key')\n")
    (tmp_path / "good.py").write_text(GOOD)
    return tmp_path


def test_every_mistake_is_reported_in_one_run(project: Path) -> None:
    result = run_command(["-o", "json", "validate"], project)
    assert result.returncode == 1, result.stderr
    document = [(each["file"], each["line"], each["code"], each["message"]) for each in json.loads(result.stdout)]
    of_settings = [(line, code, message) for file, line, code, message in document if file == "saga.toml"]
    assert sorted((line, code) for line, code, _ in of_settings) == [
        (1, "SAGA142"), (1, "SAGA142"), (1, "SAGA143"), (1, "SAGA143"), (8, "SAGA142"),
    ]  # fmt: skip
    texts = "\n".join(message for _, _, message in of_settings)
    for text in ("retries", "kindd", "kafka.batch", "no key", "nowhere.actions was not found"):
        assert text in texts
    of_definition = {(line, code) for file, line, code, _ in document if file == "order.saga.yaml"}
    assert {line for line, _ in of_definition} == {3, 4}, "the argument of the good module, the field"
    assert "SAGA401" not in {code for _, code in of_definition}, "mail.tell may be an action of the broken module"
