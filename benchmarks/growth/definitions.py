"""Projects of few and of many definitions: all of them, and the one that a command needs."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.bulk import SETTINGS, SQL_STEP, definition
from benchmarks.growth.database import Costs, GrowthDatabase
from sagas.project import Project
from sagas.settings import load_settings

SIZES, QUICK = (10, 1000), (2, 20)
"""Definitions of the project."""


async def measure(database: GrowthDatabase, rows: int) -> Costs:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "saga.toml").write_text(SETTINGS.replace('actions = ["./bulk_participants.py"]\n', ""))
        (folder / "schema.sql").write_text("")
        for number in range(rows):
            (folder / f"saga{number}.saga.yaml").write_text(definition(f"saga{number}", SQL_STEP))
        settings = load_settings(folder)

        async def read_all() -> None:
            assert len(Project(settings).definitions) == rows

        async def read_single() -> None:
            Project(settings).definition("saga1")

        async def has_changed() -> None:
            assert not project.has_changed()

        project = Project(settings)
        return {
            "all definitions, for each": await database.each(read_all, pieces=rows),
            "the definition of one saga": await database.each(read_single, 5),
            "a look for changed files, for each": await database.each(has_changed, 5, rows),
        }
