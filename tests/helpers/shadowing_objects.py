"""Operators and functions that a role with CREATE on a schema of the search_path can bring between a statement and
pg_catalog: with exactly the types that a call has, where pg_catalog has only a form that needs a cast."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

import psycopg
from psycopg import sql

from tests.helpers.database_servers import DatabaseServer

_TEXTS = ("text", "varchar", "bpchar", "name")
_NUMBERS = ("int2", "int4", "int8", "float8", "numeric")
_OIDS = ("oid", "regclass", "regproc")
_OTHERS = (
    *("bool", "json", "jsonb", "timestamptz", "interval", "xid8", '"char"', "text[]", "varchar[]", "name[]", "int8[]"),
    *("int4[]", "int2[]", "oid[]", '"char"[]', "int2vector", "oidvector"),
)
_TYPES = (*_TEXTS, *_NUMBERS, *_OIDS, *_OTHERS)
_COMPARISONS = ("=", "<>", "<", ">", "<=", ">=", "~~")
_ARITHMETIC = ("+", "-", "*", "/", "%")
_SOURCES = ("activities", "workers", "spark_steps")

_EXISTING_OPERATORS = """
    select oprname, oprleft::regtype::text, oprright::regtype::text from pg_operator
    where oprnamespace = 'pg_catalog'::regnamespace
"""
_EXISTING_FUNCTIONS = """
    select proname, pronargs, coalesce(array_agg(argument::regtype::text order by place), '{}')
    from (select oid, proname, pronargs, argument, place from pg_proc
          left join lateral unnest(proargtypes) with ordinality a(argument, place) on true
          where pronamespace = 'pg_catalog'::regnamespace and pronargs <= 2) f
    group by oid, proname, pronargs
"""
_LONG = {"varchar": "character varying", "bpchar": "character", "int2": "smallint", "int4": "integer", "int8": "bigint",
         "float8": "double precision", "bool": "boolean", "timestamptz": "timestamp with time zone",
         "varchar[]": "character varying[]", "int8[]": "bigint[]", "int4[]": "integer[]"}  # fmt: skip


def install(server: DatabaseServer, url: str) -> int:
    """Create them in the schema public of a database; each call of one is a line with TRAP in the server's log."""
    with psycopg.connect(url, autocommit=True) as connection:
        existing = {tuple(row) for row in connection.execute(_EXISTING_OPERATORS)}
        rows = connection.execute(_EXISTING_FUNCTIONS).fetchall()
        functions = {(name, tuple(types)) for name, _, types in rows}
        statements = [*_operators(existing), *_functions(functions)]
        with connection.transaction():
            connection.execute("set local log_min_messages = fatal")
            connection.execute(";".join(statements))  # pyright: ignore[reportArgumentType,reportCallIssue]
        database = sql.Identifier(connection.info.dbname)
        for name in ("log_min_messages", "log_min_error_statement"):
            connection.execute(sql.SQL("alter database {} set {} = log").format(database, sql.Identifier(name)))
    return len(statements)


def sprung(server: DatabaseServer) -> list[str]:
    """The calls of them so far, with their statements."""
    log = (server.folder / "server.log").read_text(errors="replace").splitlines()
    return [
        f"{line}\n{next((after for after in log[at : at + 40] if 'STATEMENT:' in after), '')}"
        for at, line in enumerate(log)
        if "TRAP" in line and "LOG:" in line
    ]


def _operators(existing: set[tuple[str, ...]]) -> Iterator[str]:
    for number, (left, right) in enumerate(product(_TYPES, repeat=2)):
        kind = _common(left, right)
        for name in (*_COMPARISONS, *_ARITHMETIC, "||", "->>"):
            if (name, _LONG.get(left, left), _LONG.get(right, right)) in existing:
                continue
            if kind is None and name not in ("=", "||"):
                continue
            result = "bool" if name in _COMPARISONS else "text" if kind in (None, "text") else "numeric"
            value = f"$1::text operator(pg_catalog.{'=' if result == 'bool' else '||'}) $2::text"
            if kind is not None and not (kind == "text" and name in (*_ARITHMETIC, "->>")):
                value = f"$1::{kind} operator(pg_catalog.{name}) $2::{kind}"
            if kind == "numeric" and name in ("~~", "||", "->>"):
                continue
            if kind == "text" and name in (*_ARITHMETIC, "->>"):
                continue
            function = f"trap_{number}_{sum(ord(each) for each in name)}_{len(name)}"
            yield (
                f"create function public.{function}({left}, {right}) returns {result} language plpgsql"
                f" set search_path = pg_catalog as $trap$ begin"
                f" raise log 'TRAP {left} {name.replace('%', '%%')} {right}'; return {value}; end $trap$"
            )
            yield f"create operator public.{name} (leftarg = {left}, rightarg = {right}, function = public.{function})"


def _common(left: str, right: str) -> str | None:
    if left in _TEXTS and right in _TEXTS:
        return "text"
    if left in _NUMBERS and right in _NUMBERS:
        return "numeric"
    return "int8" if {left, right} <= {*_OIDS, "int2", "int4", "int8"} else None


def _functions(existing: set[tuple[str, tuple[str, ...]]]) -> Iterator[str]:
    existing_names = {name for name, _ in existing}
    for name in sorted(existing_names & set(_called())):
        for types in (*((each,) for each in _TYPES), *product(("text", "varchar", "int4", "int8", "float8"), repeat=2)):
            if (name, tuple(_LONG.get(each, each) for each in types)) in existing:
                continue
            yield (
                f'create function public."{name}"({", ".join(types)}) returns text language plpgsql as $trap$'
                f" begin raise log 'TRAP {name}({', '.join(types)})'; raise exception 'TRAP'; end $trap$"
            )


def _called() -> Iterable[str]:
    """The names that the engine's sources call in any text."""
    root = Path(__file__).parents[2]
    for folder in _SOURCES:
        for path in (root / folder).rglob("*.py"):
            for line in path.read_text().splitlines():
                if '"' in line or "func." in line:
                    yield from (name.lower() for name in re.findall(r"\b([A-Za-z_0-9]+)\(", line))
