"""The folder of a reconciliation is private and removed, also that of a killed one."""

from __future__ import annotations

from pathlib import Path

from saga_spark.reconcile.work_folder import open_work_folder


async def test_the_folder_is_private_and_removed(tmp_path: Path) -> None:
    async with open_work_folder(tmp_path / ".saga" / "reconcile") as folder:
        (folder / "spill").mkdir()
        assert (folder.stat().st_mode & 0o777, folder.parent.stat().st_mode & 0o777) == (0o700, 0o700)
    assert list(folder.parent.iterdir()) == []


async def test_a_folder_in_use_stays_and_one_that_was_left_goes(tmp_path: Path) -> None:
    abandoned = tmp_path / "reconcile" / "left"
    abandoned.mkdir(parents=True)
    (abandoned / "lock").touch()
    (abandoned / "guard.parquet").touch()
    async with open_work_folder(tmp_path / "reconcile") as first:
        assert not abandoned.exists()
        async with open_work_folder(tmp_path / "reconcile") as second:
            assert first.exists()
            assert second != first
