"""The folder of the embedded stack."""

from __future__ import annotations

from pathlib import Path

from saga_workers.devstack.dev_folder import DevFolder


def test_no_other_user_can_hold_the_lock(tmp_path: Path) -> None:
    folder = DevFolder(tmp_path)
    folder.dev.mkdir(parents=True, exist_ok=True)
    lock = folder.dev / "lock"
    lock.write_text("", encoding="utf-8")
    lock.chmod(0o644)
    with folder.lock(lambda: None):
        assert lock.stat().st_mode & 0o777 == 0o600
