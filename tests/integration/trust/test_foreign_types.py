"""Types of other roles that only a name in the worker's SQL leads to, such as that of a cast, are reported."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.helpers.database_servers import DatabaseServer
from tests.helpers.shared_database import Shop, look, new_shop


@pytest.fixture
def shop(postgres_server: DatabaseServer) -> Iterator[Shop]:
    with new_shop(postgres_server) as made:
        yield made


TYPES = {
    "domain": ("create domain mail as text; alter domain mail owner to {stranger}", "public.mail"),
    "enum": ("create type mood as enum ('good'); alter type mood owner to {stranger}", "public.mood"),
    "composite type": ("create type pair as (a int, b int); alter type pair owner to {stranger}", "public.pair"),
    "range": ("create type span as range (subtype = int); alter type span owner to {stranger}", "public.span"),
    "inside a composite type": (
        "create schema app; create domain app.mail as text; create type pair as (a app.mail[]); "
        "alter domain app.mail owner to {stranger}",
        "app.mail",
    ),
    "inside the row type of a table": (
        "create schema app; create domain app.mail as text; create table letter (m app.mail); "
        "alter domain app.mail owner to {stranger}",
        "app.mail",
    ),
}
"""Types that no column has on which the worker has a right, and the one that is reported."""


@pytest.mark.parametrize("case", TYPES)
def test_a_type_in_the_path_is_reported(shop: Shop, case: str) -> None:
    statements, named = TYPES[case]
    for statement in statements.split("; "):
        shop.execute(statement)
    report = look(shop)
    assert report is not None
    assert f"{shop.stranger} owns the type " in report.message
    assert named in report.message
    assert look(shop, trusted=[shop.stranger]) is None
    shop.execute(f"alter type {named} owner to {{worker}}")
    assert look(shop) is None


def test_the_check_of_a_type_that_only_a_cast_names_runs_as_the_worker(shop: Shop) -> None:
    """The type was made while its owner might create objects in a schema of the path, which it may not any more."""
    for statement in (
        "create schema hidden",
        "grant usage on schema hidden to {worker}",
        "create table loot (who text)",
        "grant insert on loot to {worker}",
        """create function hidden.f(text) returns boolean language plpgsql as $f$ begin
          if current_user like 'worker%' then insert into public.loot values (current_user); end if;
          return true; end $f$""",
        "create domain mail as text check (hidden.f(value))",
        "alter routine hidden.f(text) owner to {stranger}",
        "alter domain mail owner to {stranger}",
    ):
        shop.execute(statement)
    with psycopg.connect(shop.url, autocommit=True) as worker:
        worker.execute("select cast('a' as mail)")
    assert shop.admin.execute("select who from loot").fetchall() == [(shop.worker,)]
    report = look(shop)
    assert report is not None
    assert f"{shop.stranger} owns the type public.mail" in report.message
    assert "owns the routine hidden.f(" in report.message


def test_the_row_type_of_a_table_without_rights_is_none(shop: Shop) -> None:
    """A row type runs only what the types of its columns and its casts do: tables of others are no finding."""
    shop.execute("create table letter (n int)")
    shop.execute("alter table letter owner to {stranger}")
    assert look(shop) is None
