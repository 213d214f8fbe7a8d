"""All measurements, or those that are named: `python -m benchmarks [NAME …] [--quick]`.

Each but `recovery` measures two ways side by side, round by round in turn, so that a noisy neighbour hits both, and
prints ratios; absolute figures belong to the machine. Each takes more options when it is run alone: `python -m
benchmarks.NAME --help`.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from pathlib import Path

ALL = {
    "sagas": ("sagas by this engine and by hand", ["--quick"]),
    "fused": ("three guarded steps in one activity, and in three, both by hand", ["--quick"]),
    "bulk": ("many sagas in one workflow, a program without an engine, and a workflow for each saga", ["--quick"]),
    "starts": ("starts over HTTP that share workflows, and a workflow for each", ["--quick"]),
    "peers": ("the same saga on this engine, on other engines and without one", ["--quick"]),
    "growth": ("work among few rows and among many", ["--quick"]),
    "staging": ("a Spark output staged, audited and published, and a bare write", ["--quick"]),
    "warm": ("a small Spark job as a step, and in a bare session", ["--quick"]),
    "relay": ("events through the outbox and its relay, and a bare transactional producer", ["--quick"]),
    "triggers": ("sagas started by events, and by a client", ["--quick"]),
    "enqueue": ("sagas that applications enqueue in their transactions, and a client that starts them", ["--quick"]),
    "hostile": ("what hostile inputs cost a process, and the starts of others", ["--quick"]),
    "signing": ("the CPU of signed calls, and of calls that nobody signs or verifies", ["--quick"]),
    "signatures": ("the CPU of all signatures of one call", []),
    "cli": ("the CPU of commands, and of the import of Temporal's client", ["--quick"]),
    "recovery": ("how long sagas are interrupted when their worker is killed", ["--quick"]),
    "reconcile": ("reconciliation of synthetic data, and a full outer join", ["--sizes", "10000", "--rounds", "1"]),
}
"""Name: what it compares, and the options that make it short."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(ALL)}; none: all of them")
    parser.add_argument("--quick", action="store_true", help="the shortest run, to check that it works")
    options = parser.parse_args()
    for name in options.names:
        if name not in ALL:
            parser.error(f"there is no benchmark {name}; the benchmarks are {', '.join(ALL)}")
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} processors")
    failed = 0
    for name in options.names or ALL:
        what, short = ALL[name]
        load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
        print(f"\n{name}: {what} (load of the machine before: {load})", flush=True)
        argv = [sys.executable, "-m", f"benchmarks.{name}", *(short if options.quick else [])]
        failed |= subprocess.run(argv, cwd=Path(__file__).parent.parent, check=False).returncode
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
