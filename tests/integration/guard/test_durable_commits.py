"""Guarded transactions are on disk once committed, though the sessions of the role need not wait for that."""

from __future__ import annotations

import pytest
from sqlalchemy import make_url

from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database
from tests.integration.guard.automatic_steps import Tables
from tests.integration.guard.conftest import open_guard_database


@pytest.mark.parametrize(("setting", "used"), [("off", "on"), ("local", "local"), ("remote_apply", "remote_apply")])
async def test_only_a_commit_that_waits_for_no_disk_is_changed(
    setting: str, used: str, postgres_server: DatabaseServer
) -> None:
    url = make_url(new_database(postgres_server)).update_query_dict({"options": f"-c synchronous_commit={setting}"})
    tables = Tables(await open_guard_database("postgres", url.render_as_string(hide_password=False)))
    await tables.sql("create table @used (id int primary key, setting text)")
    done = await tables.do(["insert into @used values (1, current_setting('synchronous_commit'))"])
    assert done.kind == "done", done
    assert await tables.dump() == {"used": [f"(1, '{used}')"]}
    await tables.database.connections.close()
