"""The pytest plugin in use: the tests of the demo, of a new project, and of a saga that leaks an effect."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from saga_cli import main

ROOT = Path(__file__).resolve().parents[3]


def pytest_in(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def test_the_tests_of_the_demo_pass() -> None:
    done = pytest_in(ROOT / "definitions" / "retail", "tests")
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_the_tests_of_a_new_project_pass(tmp_path: Path) -> None:
    assert main.run(["init", str(tmp_path / "shop")]) == 0
    done = pytest_in(tmp_path / "shop")
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


LEAKING = """
saga: leaking
steps:
  - {id: hold, uses: old.hold, idempotent: false, compensate: old.release}
  - {id: pay, uses: new.pay, pivot: true}
"""
ACTIONS = """
from sagas import action

@action("old.hold")
def hold(): ...

@action("old.release")
def release(): ...

@action("new.pay", connection="shop")
def pay(): ...
"""
TESTS = """
def test_every_failure(saga):
    saga.check_all("leaking", {})

def test_declined(saga):
    run = saga.run("leaking", {}, outcomes={"pay": "rejected"})
    assert (run.state, run.undone, run.reason["step"]) == ("COMPENSATED", ["hold"], "pay")

def test_cancelled(saga):
    run = saga.run("leaking", cancel_at="hold")
    assert (run.state, run.reason["kind"]) == ("COMPENSATED", "cancelled")
"""


def test_a_residue_fails_the_test_with_a_message(tmp_path: Path) -> None:
    (tmp_path / "saga.toml").write_text('actions = ["./actions.py"]\n[connections.shop]\n')
    (tmp_path / "actions.py").write_text(ACTIONS)
    (tmp_path / "definitions").mkdir()
    (tmp_path / "definitions" / "leaking.saga.yaml").write_text(LEAKING)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_leaking.py").write_text(TESTS)
    done = pytest_in(tmp_path)
    assert done.returncode == 1
    assert "1 failed, 2 passed" in done.stdout
    assert "leaking leaves a residue at 1 of" in done.stdout
    assert "hold, late: COMPENSATED, but an effect stays: hold (old.hold)" in done.stdout
    assert "Traceback" not in done.stdout


def test_the_plugin_imports_nothing_until_used() -> None:
    script = "import sys, sagas.testing; print([m for m in ('temporalio', 'pydantic', 'ruamel') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
