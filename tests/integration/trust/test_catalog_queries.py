"""No operator or function of another schema is in the plan of a query of PostgreSQL's catalog.

The database has one for each pair of types; what a view of the query depends on was chosen in its place.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator

import psycopg
from psycopg import sql
from sqlalchemy import TextClause

from saga_activities.connections import open_engine
from saga_activities.guard.schema import create_tables
from tests.helpers import shadowing_objects
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database

ROOMS = ("saga_activities", "saga_workers", "saga_spark")
SELECT = re.compile(r"\s*(?:select|with)\b", re.IGNORECASE)
CATALOG = re.compile(r"\bpg_[a-z]|\breg[a-z]+\b|\bto_reg")
NO_VIEW = re.compile(r"\b(?:insert|update|delete)\s|\{", re.IGNORECASE)
"""Statements that write, and templates."""

FAMILY = "with family as (select null::oid as oid)"
"""Before queries that read a family of partitions."""

DEPENDENCIES = """
select case refclassid when 'pg_operator'::regclass then refobjid::regoperator::text
    else refobjid::regprocedure::text end
from pg_depend d join pg_rewrite r on r.oid = d.objid and d.classid = 'pg_rewrite'::regclass
where r.ev_class = 'public.examined'::regclass and refclassid in ('pg_operator'::regclass, 'pg_proc'::regclass)
"""
"""What PostgreSQL itself has is not recorded there."""


def catalog_queries() -> dict[str, str]:
    """The texts of all constants that read the catalog, by the places of their first mention."""
    places: dict[str, str] = {}
    for room in ROOMS:
        package = importlib.import_module(room)
        for info in pkgutil.walk_packages(package.__path__, f"{room}."):
            if info.name.endswith("__main__"):
                continue
            for name, value in vars(importlib.import_module(info.name)).items():
                for text in texts_of(value):
                    if SELECT.match(text) and CATALOG.search(text) and not NO_VIEW.search(text):
                        places.setdefault(text, f"{info.name}.{name}")
    return {place: text for text, place in places.items()}


def texts_of(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case TextClause():
            yield value.text
        case dict() | list() | tuple():
            for member in value.values() if isinstance(value, dict) else value:
                yield from texts_of(member)


def with_nulls(text: str) -> str:
    """The query with null for each parameter; lists of names and of types have their types."""
    query = re.sub(r"(?<![:\w]):\w+|%\(\w+\)s|%s", "null", text).replace("%%", "%").strip().rstrip(";")
    query = re.sub(r"\boid = any\(null\)", "oid = any(null::oid[])", query)
    query = re.sub(r"\b(any|all) ?\(null\)", r"\1(null::text[])", query, flags=re.IGNORECASE)
    return f"{FAMILY} {query}" if "from family" in query else query


async def test_catalog_queries_use_only_what_pg_catalog_has(postgres_server: DatabaseServer) -> None:
    queries = catalog_queries()
    assert len(queries) > 20
    url = new_database(postgres_server)
    engine = open_engine("shop", url, 1)
    await create_tables(engine)
    await engine.dispose()
    shadowing_objects.install(postgres_server, url)
    replaced: dict[str, list[str]] = {}
    with (
        psycopg.connect(url, autocommit=True) as connection,
        psycopg.connect(url, autocommit=True, options="-c search_path=pg_catalog") as observer,
    ):
        for place, text in queries.items():
            view = f"create view examined as select count(*) from ({with_nulls(text)}) as q"
            connection.execute(sql.SQL(view))  # pyright: ignore[reportArgumentType]
            if names := [name for (name,) in observer.execute(DEPENDENCIES)]:
                replaced[place] = names
            connection.execute("drop view examined")
    assert replaced == {}
