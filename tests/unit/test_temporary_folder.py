"""The folders of runs in memory: those of killed runs are removed, never those of runs that go on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.helpers.temporary_folder import RunFolder, remove_dead_runs

RUN = """
import sys, time
from pathlib import Path
from tests.helpers.temporary_folder import RunFolder
folder = RunFolder(Path(sys.argv[1]))
(folder.path / "data").mkdir()
(folder.path / "data" / "file").write_text("x")
print(folder.path, flush=True)
time.sleep(600)
"""


def test_only_the_folder_of_a_killed_run_is_removed(tmp_path: Path) -> None:
    mine, of_others = RunFolder(tmp_path), tmp_path / "saga-something-else"
    of_others.mkdir()
    with subprocess.Popen([sys.executable, "-c", RUN, str(tmp_path)], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        folder = Path(run.stdout.readline().strip())
        remove_dead_runs(tmp_path)
        assert (folder / "data" / "file").exists()
        run.kill()
        run.wait()
    remove_dead_runs(tmp_path)
    assert not folder.exists()
    assert mine.path.exists()
    assert of_others.exists()
    mine.remove()
    assert not mine.path.exists()
