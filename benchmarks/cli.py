"""The CPU of `saga` commands, beside the import of Temporal's client that each of them needs which talks to a server.

Each round runs every command once in a new process, so that other load hits all of them alike; the figures are medians
of user and system time of that process.
"""

from __future__ import annotations

import argparse
import compileall
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent
SAGA = [sys.executable, "-m", "saga_cli"]
START = ["start", "shop", "--id", "first", "--set", "product=apple", "--set", "quantity=2"]
COMMANDS: dict[str, Sequence[str]] = {
    "import temporalio.client": [sys.executable, "-c", "import temporalio.client"],
    "saga --help": [*SAGA, "--help"],
    "saga validate": [*SAGA, "validate"],
    "saga start": [*SAGA, *START],
    "saga show": [*SAGA, "show", "first"],
    "saga list": [*SAGA, "list"],
    "saga watch": [*SAGA, "watch", "first"],
    "saga signal": [*SAGA, "signal", "first", "paid"],
    "saga cancel": [*SAGA, "cancel", "first"],
}
"""The saga has ended: the last two are refused, after they have asked the server."""


def cpu_seconds(words: Sequence[str], folder: Path) -> float:
    """The user and system time of a process."""
    process = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, _, usage = os.wait4(process.pid, 0)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    for room in ("sagas", "activities", "spark_steps", "workers", "cli"):
        compileall.compile_dir(ROOT / room, quiet=1)
    with tempfile.TemporaryDirectory(prefix="saga-bench-") as name:
        folder = Path(name, "shop")
        subprocess.run([*SAGA, "init", str(folder)], check=True, stdout=subprocess.DEVNULL)
        try:
            subprocess.run([*SAGA, "dev", "up"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
            subprocess.run([*SAGA, *START, "--wait"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
            figures: dict[str, list[float]] = {name: [] for name in COMMANDS}
            for _ in range(2 if options.quick else options.rounds):
                for command, words in COMMANDS.items():
                    figures[command].append(cpu_seconds(words, folder))
        finally:
            subprocess.run([*SAGA, "dev", "down"], cwd=folder, check=False, stdout=subprocess.DEVNULL)
    print(f"{'':26} median     min     max   seconds of CPU")
    for command, seconds in figures.items():
        print(f"{command:26} {median(seconds):6.2f}  {min(seconds):6.2f}  {max(seconds):6.2f}")


if __name__ == "__main__":
    main()
