"""MariaDB: views and routines of other accounts, which run code with the rights of the worker, are named."""

from __future__ import annotations

import uuid

from sqlalchemy import make_url, text

from saga_activities.connections import open_engine
from saga_workers.doctor.foreign_definers import check_definers
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_mariadb_database


async def test_an_invoker_view_of_another_account_is_named(mariadb_server: DatabaseServer) -> None:
    url = await new_mariadb_database(mariadb_server)
    database, mark = make_url(url).database, uuid.uuid4().hex[:8]
    worker, app = f"worker_{mark}", f"app_{mark}"
    admin = open_engine("admin", url, 1)
    engine = open_engine("shop", str(make_url(url).set(username=f"worker_{mark}")), 1)
    try:
        async with admin.connect() as connection:
            for statement in (
                "create table loot (who varchar(80))",
                "create table item (n int)",
                "insert into item values (1)",
                "create view own as select n from item",
                f"create user {worker}",
                f"create user {app}",
                f"grant all on {database}.* to {worker}",
                f"create definer={worker} view mine as select n from item",
                "drop view own",
            ):
                await connection.exec_driver_sql(statement)
        [clean] = await check_definers("shop", engine)
        assert clean.ok
        async with admin.connect() as connection:
            for statement in (
                f"create definer={app} function taken() returns int sql security invoker modifies sql data "
                "begin insert into loot values (current_user()); return 7; end",
                f"create definer={app} sql security invoker view prices as select taken() as n",
            ):
                await connection.exec_driver_sql(statement)
        async with engine.connect() as connection:
            await connection.execute(text("update item set n = (select n from prices)"))
            who = (await connection.execute(text("select who from loot"))).scalars().all()
        assert who == [f"worker_{mark}@%"]
        [results] = await check_definers("shop", engine)
        assert results.ok is None
        assert f"function taken of app_{mark}@%" in results.message
        assert f"view prices of app_{mark}@%" in results.message
        assert "mine" not in results.message
    finally:
        await engine.dispose()
        await admin.dispose()
