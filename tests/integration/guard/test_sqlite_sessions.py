"""The settings of the engine's connections to SQLite, which a build of the library may have otherwise by default."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from saga_activities.connections import open_engine

SETTINGS = {
    "foreign_keys": 1,
    "ignore_check_constraints": 0,
    "recursive_triggers": 0,
    "reverse_unordered_selects": 0,
    "legacy_alter_table": 0,
    "synchronous": 2,
    "journal_mode": "wal",
}


async def test_each_session_of_sqlite_has_the_same_settings(tmp_path: Path) -> None:
    engine = open_engine("shop", f"sqlite:///{tmp_path}/shop.db", 2)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(engine.dispose)
        for _ in range(2):
            connection = await stack.enter_async_context(engine.connect())
            for name, value in SETTINGS.items():
                assert (await connection.exec_driver_sql(f"PRAGMA {name}")).scalar() == value, name
            like = await connection.execute(text("select 'A' like 'a'"))
            assert like.scalar() == 1, "case_sensitive_like, which cannot be read"


async def test_the_constraints_of_sqlite_hold(tmp_path: Path) -> None:
    engine = open_engine("shop", f"sqlite:///{tmp_path}/shop.db", 1)
    async with engine.connect() as connection:
        await connection.exec_driver_sql("create table stock (sku text primary key, free int check (free >= 0))")
        await connection.exec_driver_sql("create table sale (sku text references stock)")
        for statement in ("insert into stock values ('a', -1)", "insert into sale values ('nowhere')"):
            with pytest.raises(IntegrityError):
                await connection.exec_driver_sql(statement)
    await engine.dispose()
