"""Runs sequences on servers of its own, for hours:

python -m tests.integration.engine.sequences.run_seeds [--bulk] FIRST COUNT [FOLDER [ACTION...]]

The reports of those with faults, and of those that end otherwise than by themselves, are written to the folder. With
actions each sequence has these, in place of those that its seed draws.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.helpers.database_servers import postgres
from tests.helpers.new_databases import drop_databases
from tests.helpers.processes import TemporalServer
from tests.integration.engine.sequences.bulk_sequence import run_bulk_sequence
from tests.integration.engine.sequences.sequence import run_sequence

_AT_A_TIME = 50
"""Sequences with one Temporal server."""


def main(seeds: Sequence[int], folder: Path | None, names: Sequence[str], *, bulk: bool) -> None:
    """Run the sequences of these seeds, print a line for each and what is wrong, and how often each action was made."""
    run = run_bulk_sequence if bulk else run_sequence
    counts: Counter[str] = Counter()
    room = Path(tempfile.mkdtemp(prefix="saga-sequences-", dir="/dev/shm"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        with postgres() as server:
            for start in range(0, len(seeds), _AT_A_TIME):
                with TemporalServer(room / f"temporal-{start}") as temporal:
                    for seed in seeds[start : start + _AT_A_TIME]:
                        began = time.monotonic()
                        report = asyncio.run(run(seed, room / str(seed), temporal.address, server, names or None))
                        drop_databases()
                        ends = [f"end {end}" for end in report.end.split()]
                        counts.update([*report.actions, *ends, f"faults {len(report.faults)}"])
                        took, end = time.monotonic() - began, report.end or "-"
                        fault = "FAULT" if report.faults else ""
                        print(f"seed {seed} {took:5.1f}s {end} {' '.join(report.actions)} {fault}", flush=True)
                        if report.faults:
                            print(report, flush=True)
                        if folder is not None and (
                            report.faults or set(report.end.split()) - {"COMPLETED", "COMPENSATED"}
                        ):
                            folder.mkdir(parents=True, exist_ok=True)
                            (folder / f"{seed}.txt").write_text(f"{report}\n{report.worker_logs}", "utf-8")
                        shutil.rmtree(room / str(seed), ignore_errors=True)
    finally:
        shutil.rmtree(room, ignore_errors=True)
        print(dict(counts), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--bulk", action="store_true", help="sagas of bulk workflows")
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("action", nargs="*")
    given = parser.parse_args()
    main(range(given.first, given.first + given.count), given.folder, given.action, bulk=given.bulk)
