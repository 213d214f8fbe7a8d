"""Modules of actions that print while they are imported, in several threads of a process."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from sagas.actions.registry import load_modules
from sagas.text.thread_output import stdout_as_stderr


def test_a_printing_module_prints_nothing_among_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "noisy.py").write_text("print('imported')\n")
    load_modules(["noisy.py"], tmp_path)
    print("document")
    assert capsys.readouterr() == ("document\n", "imported\n")


def test_another_thread_goes_on_printing(capsys: pytest.CaptureFixture[str]) -> None:
    """Even if it enters a block while the first one is in its own, and leaves it later."""
    output = sys.stdout
    inside, may_leave = threading.Event(), threading.Event()

    def load() -> None:
        with stdout_as_stderr():
            inside.set()
            may_leave.wait()
            print("of the module")

    with stdout_as_stderr():
        loading = threading.Thread(target=load)
        loading.start()
        inside.wait()
    print("document")
    may_leave.set()
    loading.join()
    assert sys.stdout is output
    assert capsys.readouterr() == ("document\n", "of the module\n")
