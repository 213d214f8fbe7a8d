"""A project of another user is not executed, unless it is trusted explicitly; only root can give files away."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from saga_workers.doctor.checks import _check_settings
from sagas.errors import UsageError
from sagas.project import Project
from sagas.settings import load_settings

pytestmark = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a file to another user"
)

STRANGER = 54321


@pytest.fixture
def root(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    (project / "definitions").mkdir(parents=True)
    (project / "saga.toml").write_text('actions = ["./mine.py"]\n', encoding="utf-8")
    (project / "mine.py").write_text("raise SystemExit('executed')\n", encoding="utf-8")
    return project


def give_away(path: Path) -> None:
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)


def test_settings_of_another_user_are_refused(root: Path) -> None:
    give_away(root / "saga.toml")
    with pytest.raises(UsageError, match=r"saga.toml belongs to another user \(uid 54321\)") as refused:
        load_settings(root, env={})
    assert refused.value.help == f"if you trust it: export SAGA_TRUST_PROJECT={root}"


@pytest.mark.parametrize("folder", ["", ".."])
def test_a_trusted_folder_is_read(root: Path, folder: str) -> None:
    give_away(root / "saga.toml")
    env = {"SAGA_TRUST_PROJECT": os.pathsep.join(["/nowhere", str((root / folder).resolve())])}
    assert load_settings(root, env=env).actions == ("./mine.py",)


@pytest.mark.parametrize("trusted", ["", ".", "relative", "/nowhere"])
def test_another_folder_is_not_trusted(root: Path, trusted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    give_away(root / "saga.toml")
    monkeypatch.chdir(root)
    with pytest.raises(UsageError, match="belongs to another user"):
        load_settings(root, env={"SAGA_TRUST_PROJECT": trusted})


def test_the_caller_of_sudo_is_trusted_by_root(root: Path) -> None:
    give_away(root / "saga.toml")
    assert load_settings(root, env={"SUDO_UID": str(STRANGER)}).config_file == root / "saga.toml"


def test_a_link_of_another_user_to_a_file_of_mine_is_refused(root: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / "saga.toml").symlink_to(root / "saga.toml")
    give_away(trap / "saga.toml")
    with pytest.raises(UsageError, match="belongs to another user"):
        load_settings(trap, env={})


def test_addresses_of_a_stack_of_another_user_are_refused(tmp_path: Path) -> None:
    (tmp_path / ".saga").mkdir()
    (tmp_path / ".saga" / "dev.toml").write_text('[temporal]\naddress = "evil:7233"\n', encoding="utf-8")
    give_away(tmp_path / ".saga" / "dev.toml")
    with pytest.raises(UsageError, match=r"dev\.toml belongs to another user"):
        load_settings(tmp_path, env={})


@pytest.mark.parametrize("given", ["mine.py", "."])
def test_actions_of_another_user_are_not_executed(root: Path, given: str) -> None:
    give_away(root / given)
    with pytest.raises(UsageError, match="belongs to another user"):
        _ = Project(load_settings(root, env={})).actions


def test_an_action_package_of_another_user_is_not_executed(root: Path) -> None:
    (root / "saga.toml").write_text('actions = ["strange.actions"]\n', encoding="utf-8")
    (root / "strange").mkdir()
    (root / "strange" / "actions.py").write_text("raise SystemExit('executed')\n", encoding="utf-8")
    give_away(root / "strange")
    with pytest.raises(UsageError, match="strange belongs to another user"):
        _ = Project(load_settings(root, env={})).actions


def test_definitions_of_another_user_are_not_read(root: Path) -> None:
    (root / "saga.toml").write_text("", encoding="utf-8")
    give_away(root / "definitions")
    with pytest.raises(UsageError, match="definitions belongs to another user"):
        _ = Project(load_settings(root, env={})).definitions


def test_a_project_in_the_folder_of_another_user_is_read(root: Path) -> None:
    (root / "mine.py").write_text("", encoding="utf-8")
    give_away(root.parent)
    assert Project(load_settings(root, env={})).diagnostics == []


def test_doctor_names_what_others_may_change(root: Path) -> None:
    settings = load_settings(root, env={})
    assert _check_settings(settings).ok
    for path, mode in ((root / "mine.py", 0o666), (root, 0o777), (root / "saga.toml", 0o664)):
        before = path.stat().st_mode
        path.chmod(mode)
        actual_settings = _check_settings(settings)
        assert (actual_settings.ok, actual_settings.help) == (None, f"chmod go-w {path}")
        path.chmod(before)
