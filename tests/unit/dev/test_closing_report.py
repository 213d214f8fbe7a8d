"""`saga dev up` ends with what is wrong although everything runs, and does all its work when nobody reads that."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from saga_workers.devstack.closing_report import report_what_is_missing
from sagas.settings import load_settings

GOOD = "saga: good\nsteps: [{id: a, uses: pass}]\n"
WRONG = "saga: wrong\nsteps: [{id: a, uses: nobodys}, {id: a, uses: pass}]\n"


@pytest.mark.parametrize(
    ("started", "expected"),
    [
        (("worker",), ["2 errors in b.saga.yaml: no saga with an error starts; saga validate lists the errors"]),
        (("temporal", "postgres"), []),
    ],
)
def test_definitions_with_errors_are_named(started: tuple[str, ...], expected: list[str], tmp_path: Path) -> None:
    (tmp_path / "saga.toml").write_text('definitions = ["."]\n')
    (tmp_path / "a.saga.yaml").write_text(GOOD)
    (tmp_path / "b.saga.yaml").write_text(WRONG)
    lines: list[str] = []
    report_what_is_missing(load_settings(tmp_path), started, lines.append)
    assert lines == expected


def test_modules_that_cannot_be_imported_are_named(tmp_path: Path) -> None:
    (tmp_path / "saga.toml").write_text('definitions = ["."]\nactions = ["./broken.py"]\n')
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "a.saga.yaml").write_text(GOOD)
    lines: list[str] = []
    report_what_is_missing(load_settings(tmp_path), ["worker"], lines.append)
    assert [line for line in lines if "nothing_of_this_name" in line] == lines != []


def test_work_goes_on_when_its_reader_has_ended(tmp_path: Path) -> None:
    program = "from saga_cli.output import echo_progress as say; import sys, time\nsay('one'); time.sleep(0.5)\n"
    program += "say('two'); open(sys.argv[1], 'w').write('done')\n"
    done = tmp_path / "done"
    subprocess.run(["sh", "-c", '"$0" "$@" | head -n 1', sys.executable, "-c", program, str(done)], check=True)
    for _ in range(200):
        if done.exists():
            return
        time.sleep(0.05)
    raise AssertionError("the work has ended with its reader")
