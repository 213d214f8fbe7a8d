"""The README's paste-and-run block, as written: the wheel in a new environment, outside of the clone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.docs.console_blocks import commands, missing

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MARK = "--- this was command "


def test_the_readme_fits_on_a_few_screens() -> None:
    assert len(README.splitlines()) <= 150


def test_paste_and_run(tmp_path: Path) -> None:
    wheels, folder = tmp_path / "wheels", tmp_path / "empty"
    folder.mkdir()
    build = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "wheel", "--no-deps"]
    subprocess.run([*build, "--no-build-isolation", "--wheel-dir", str(wheels), str(ROOT)], check=True)
    [section] = re.findall(r"^## Paste and run\n(.*?)^## ", README, re.MULTILINE | re.DOTALL)
    steps = commands(section)
    script = "\n".join(f"{step.text}\necho '{MARK}'{number}" for number, step in enumerate(steps))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "SAGA_", "PYTHON"))}
    env = {
        **kept,
        "PIP_FIND_LINKS": str(wheels),
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
        "COLUMNS": "160",
        "NO_COLOR": "1",
    }
    try:
        done = subprocess.run(
            ["bash", "-c", f"exec 2>&1\n{script}"],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
    finally:
        saga = folder / "env" / "bin" / "saga"
        if (folder / "shop").is_dir():
            subprocess.run([saga, "dev", "down"], cwd=folder / "shop", env=env, check=False)
    rest = done.stdout
    for number, step in enumerate(steps):
        output, mark, rest = rest.partition(f"{MARK}{number}\n")
        assert mark, f"$ {step.text}\ndid not end:\n{output}"
        lost = missing(step.prints, output)
        assert lost is None, f"$ {step.text}\nshould print {lost!r}, but printed:\n{output}"
