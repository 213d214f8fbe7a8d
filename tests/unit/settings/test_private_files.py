"""Files that quote data are their owner's alone, even with a umask that gives everything to everybody."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from saga_workers.devstack.os_process import Launch, start_process
from sagas.settings.private_files import make_private_folder, open_private_log, write_private_text


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True, params=[0o000, 0o022], ids=["umask-0", "umask-022"])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def test_files_and_folders(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "a" / "b")
    write_private_text(tmp_path / "report.html", "x")
    with open_private_log(tmp_path / "log") as log:
        log.write(b"one")
    assert (mode(tmp_path / "a" / "b"), mode(tmp_path / "report.html"), mode(tmp_path / "log")) == (0o700, 0o600, 0o600)


def test_older_files_become_private(tmp_path: Path) -> None:
    for name in ("report", "log"):
        (tmp_path / name).write_text("old\n")
        (tmp_path / name).chmod(0o666)
    write_private_text(tmp_path / "report", "new")
    with open_private_log(tmp_path / "log") as log:
        log.write(b"new")
    assert (mode(tmp_path / "report"), mode(tmp_path / "log")) == (0o600, 0o600)
    assert (tmp_path / "log").read_text() == "old\nnew"


def test_a_folder_that_somebody_chose_keeps_its_mode_and_the_projects_own_does_not(tmp_path: Path) -> None:
    for folder in (tmp_path / "scratch", tmp_path / ".saga" / "spark"):
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        make_private_folder(folder)
    assert mode(tmp_path / "scratch") == 0o755
    assert mode(tmp_path / ".saga" / "spark") == 0o700


def test_the_log_of_a_service_is_private(tmp_path: Path) -> None:
    start_process(Launch(["true"], tmp_path, {}), tmp_path / "service.log", "mark")
    assert mode(tmp_path / "service.log") == 0o600
