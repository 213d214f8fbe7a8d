"""The cost of a piece of work among few rows and among many: `python -m benchmarks.growth [NAME …] [--quick]`.

Each measurement fills its tables twice with SQL, to the first and to the second size, and does the same work.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path
from types import ModuleType

from benchmarks.bulk import SETTINGS, TABLES
from benchmarks.growth import definitions, guard, ledger, outbox
from benchmarks.growth.database import GrowthDatabase
from benchmarks.support.bench_stack import bench_stack
from saga_activities.connections import DatabaseConnections
from sagas.settings import load_settings

ALL: dict[str, ModuleType] = {"guard": guard, "ledger": ledger, "outbox": outbox, "definitions": definitions}
LINE = "{:<34} {:>14} {:>14} {:>7} {:>14} {:>14} {:>7}"


async def measure(folder: Path, server: int, options: argparse.Namespace) -> None:
    connections = DatabaseConnections(load_settings(folder).sql_connections())
    try:
        for name in options.names or ALL:
            module = ALL[name]
            few, many = module.QUICK if options.quick else module.SIZES
            many = options.rows or many
            database = GrowthDatabase(connections, server)
            small, large = await module.measure(database, few), await module.measure(database, many)
            print(f"\n{name}: {few:,} and {many:,}; milliseconds, load {os.getloadavg()[0]:.1f}")
            print(LINE.format("", "few", "many", "ratio", "CPU, few", "CPU, many", "ratio"))
            for what, least in small.items():
                most = large[what]
                clock = [f"{least.clock:.2f}", f"{most.clock:.2f}", f"{most.clock / least.clock:.1f}"]
                cpu = [f"{least.cpu:.2f}", f"{most.cpu:.2f}", f"{most.cpu / max(least.cpu, 0.01):.1f}"]
                print(LINE.format(what, *clock, *cpu), flush=True)
    finally:
        await connections.close()


def make_project(folder: Path) -> None:
    (folder / "saga.toml").write_text(SETTINGS.replace('actions = ["./bulk_participants.py"]\n', ""))
    (folder / "schema.sql").write_text(TABLES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(ALL)}; none: all of them")
    parser.add_argument("--rows", type=int, help="the second size, instead of that of the measurement")
    parser.add_argument("--quick", action="store_true", help="few rows, to check that it works")
    options = parser.parse_args()
    with bench_stack(make_project, ("postgres",)) as (folder, stack):
        server = stack.status()["postgres"]["pid"]
        asyncio.run(measure(folder, server, options))


if __name__ == "__main__":
    main()
