"""Projects with one saga whose undos are verified."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from saga_workers.runtime.databases import set_up_database
from saga_workers.undo_check.problem_lines import problem_lines
from saga_workers.undo_check.undo_check import GivenInput, verify_undo
from saga_workers.undo_check.undo_report import UndoReport
from sagas.project import Project
from sagas.settings import load_settings
from sagas.text.exact_json import encode_json

SQLITE_TABLES = """
create table if not exists account (id text primary key, n);
insert or ignore into account values ('a', 10);
create table if not exists journal (id integer primary key autoincrement, line text);
insert or ignore into journal values (1, 'first'), (2, 'second');
"""


def write_project(
    folder: Path, url: str, tables: str, steps: list[dict[str, Any]], actions: str = "", settings: str = ""
) -> Project:
    """A project with one saga `s`, whose connection `shop` has the tables."""
    (folder / "actions.py").write_text(actions)
    (folder / "saga.toml").write_text(
        f'actions = ["./actions.py"]\n[connections.shop]\nurl = "{url}"\nschema = "schema.sql"\n{settings}'
    )
    (folder / "schema.sql").write_text(tables)
    (folder / "definitions").mkdir()
    saga = {"saga": "s", "defaults": {"connection": "shop"}, "steps": steps}
    (folder / "definitions" / "s.saga.yaml").write_bytes(encode_json(saga))
    project = Project(load_settings(folder))
    asyncio.run(set_up_database(project.settings.sql_connections()[0]))
    return project


def sql(*statements: str, **more: Any) -> dict[str, Any]:
    return {"uses": "sql", "with": {"run": [{"sql": statement} for statement in statements]}, **more}


def last_step() -> dict[str, Any]:
    return {"id": "last", **sql("select 1 as x"), "pivot": True}


def verified(project: Project, limit: int = 100) -> UndoReport:
    return asyncio.run(verify_undo(project, project.definition("s"), [GivenInput({})], limit=limit))


def problems(report: UndoReport) -> list[str]:
    return [line.partition(" (after")[0] for line in problem_lines(report)]
