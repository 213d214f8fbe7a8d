"""A table of MariaDB that the user of the connection cannot see, and whose rows change with those of a visible one."""

from __future__ import annotations

import pytest

from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_mariadb_database
from tests.integration.guard.automatic_steps import Tables
from tests.integration.guard.test_undo_needs import connected, connected_as


@pytest.mark.parametrize(
    ("granted", "refusal"),
    [("stock", "cannot see which tables refer to"), ("*", "changes rows of line (ON DELETE of a foreign key)")],
)
async def test_a_cascade_to_a_table_that_the_user_cannot_see_is_refused(
    mariadb_server: DatabaseServer, granted: str, refusal: str
) -> None:
    url = await new_mariadb_database(mariadb_server)
    owner = await connected("mariadb", url)
    user, name = f"user{owner.id}", url.rsplit("/", 1)[1]
    await owner.sql(
        "create table stock (id int primary key, n int)",
        "create table line (id int primary key, stock_id int,"
        " foreign key (stock_id) references stock (id) on delete cascade)",
        "insert into stock values (1, 5)",
        "insert into line values (10, 1)",
        f"create user {user}",
        *(
            f"grant select, insert, update, delete on {name}.{table} to {user}"
            for table in ("saga_guard", "saga_image", "saga_row_lock")
        ),
        f"grant select on {name}.saga_watermark to {user}",
        f"grant select, insert, update, delete, trigger on {name}.stock to {user}",
        f"grant trigger on {name}.{granted} to {user}",
    )
    worker = Tables(await connected_as("mariadb", url, user))
    outcome = await worker.do(["delete from stock"])
    rows = [tuple(row) for row in await owner.sql("select id, stock_id from line")]
    await worker.database.connections.close()
    await owner.sql(f"drop user {user}")
    await owner.database.connections.close()
    assert rows == [(10, 1)]
    assert (outcome.kind, outcome.retryable) == ("failed", False)
    assert refusal in str(outcome.failure)
