"""The demo types commands as a person would."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from sagas.errors import SagaError


def type_command(words: Sequence[str], folder: Path) -> None:
    """Run `saga` with these words in the demo's folder. Raises SagaError with what it said when it fails."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "saga_cli.main", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip() or f"it ended with exit code {done.returncode}"
        raise SagaError(f"`saga {shlex.join(words)}` did not work: {said}")
