"""The README's paste-and-run block, as written: the wheel in a new environment, outside of the clone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.console_blocks import Command, commands, environment, run_and_compare
from tests.docs.local_wheels import add_wheels

ROOT = Path(__file__).parents[2]
WITHOUT_EXTRAS = (
    Command("saga doctor; echo doctor ended with $?", ("doctor ended with 0",)),
    Command("saga list --stuck", ("nothing is stuck",)),
    Command("saga check-deploy", ("this build can go on with all…",)),
    Command("saga verify-undo shop", ("each leaves the rows as before",)),
    Command("saga reconcile", ("pip install 'saga-orchestrator[reconcile]'",)),
)
"""Commands that need no more packages than the block installs, or say which."""

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_fits_on_a_few_screens() -> None:
    assert len(README.splitlines()) <= 150


def test_what_is_pasted_is_what_is_shown() -> None:
    [section] = re.findall(r"^## Paste and run\n(.*?)^## ", README, re.MULTILINE | re.DOTALL)
    [pasted] = re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert pasted.splitlines() == [command.text for command in commands(section)]


@pytest.mark.timeout(900)  # pip unpacks all packages
def test_paste_and_run(tmp_path: Path) -> None:
    wheels, folder = tmp_path / "wheels", tmp_path / "empty"
    folder.mkdir()
    build = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "wheel", "--no-deps"]
    subprocess.run([*build, "--no-build-isolation", "--wheel-dir", str(wheels), str(ROOT)], check=True)
    [section] = re.findall(r"^## Paste and run\n(.*?)^## ", README, re.MULTILINE | re.DOTALL)
    [wheel] = wheels.iterdir()
    add_wheels(wheel, "embedded")
    pip = {"FIND_LINKS": str(wheels), "NO_INDEX": "1", "CONSTRAINT": str(ROOT / "constraints.txt")}
    pip |= {"NO_COMPILE": "1", "DISABLE_PIP_VERSION_CHECK": "1"}  # Python compiles what it imports, a tenth of it all
    env = environment("PYTHON", **{f"PIP_{name}": value for name, value in pip.items()})
    run_and_compare([*commands(section), *WITHOUT_EXTRAS], folder, env, folder / "env" / "bin" / "saga", timeout=800)
