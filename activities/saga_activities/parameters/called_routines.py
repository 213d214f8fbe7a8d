"""The functions that a statement calls, as the catalog of its database describes them: what each gives on unchanged.

A function of the author may give its argument on, so that the column rounds it and not the author. Whether it does so
is not known; it may, if its result has a type of the same kind. PostgreSQL's own functions compute, unless they take
and return any type, as `lag` does, are those behind its operators and aggregates, as `numeric_smaller` is, or have the
name of a type, which is a cast. MySQL, MariaDB and SQLite do not describe theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from saga_activities.engine_tables import is_engine_table
from saga_activities.parameters.column_catalog import Query, mysql_column, read_types
from saga_activities.parameters.parameter_columns import ParameterColumn
from sagas.sql_text.calls import called_functions
from sagas.sql_text.parsed import ParsedSql
from sagas.sql_text.written_tables import PASSING_FUNCTIONS, written_tables
from sagas.text.exact_json import encode_json

_POSTGRESQL = """
WITH called AS (
    SELECT p.*, n.nspname <> 'pg_catalog' AND NOT EXISTS (
        SELECT 1 FROM pg_catalog.pg_depend d
        WHERE d.classid = 'pg_catalog.pg_proc'::regclass::oid AND d.objid = p.oid AND d.deptype = 'e'
    ) AS is_own, n.nspname = 'pg_catalog'
        AND p.proname ~ '(larger|smaller|uplus|uminus|add|sub|up|um|pl|mi|abs|^timezone)$' AS is_operator
    FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
    WHERE p.proname = ANY (:names) AND (pg_catalog.pg_function_is_visible(p.oid) OR n.nspname = ANY (:schemas))
), result AS (
    SELECT oid, prorettype AS type FROM called
  UNION
    SELECT c.oid, o.type FROM called c CROSS JOIN LATERAL ROWS FROM (
      pg_catalog.unnest(c.proallargtypes), pg_catalog.unnest(c.proargmodes)) AS o(type, mode)
    WHERE o.mode IN ('o', 'b', 't')
  UNION
    SELECT c.oid, f.atttypid FROM called c JOIN pg_catalog.pg_type t ON t.oid = c.prorettype
    JOIN pg_catalog.pg_attribute f ON f.attrelid = t.typrelid AND f.attnum > 0 AND NOT f.attisdropped
), kind AS (
    SELECT t.oid, t.typname::text LIKE 'any%' AS is_any, t.typname = 'record' AS is_record,
           coalesce(e.typcategory, t.typcategory) AS category
    FROM pg_catalog.pg_type t LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
)
SELECT c.oid::bigint AS oid, c.proname AS name, a.position::int - 1 AS position, a.type::bigint AS type, c.is_own,
       coalesce(c.proargnames[a.position], '') AS argument,
       c.provariadic <> 0::oid AND a.position = c.pronargs AS is_variadic,
       pg_catalog.bool_or(
           (k.is_any AND r.is_any)
           OR (c.is_own AND (k.is_any OR r.is_record OR k.category = r.category))
           OR (c.is_operator AND k.category = r.category)
       ) AS passes
FROM called c CROSS JOIN LATERAL pg_catalog.unnest(c.proargtypes::oid[]) WITH ORDINALITY AS a(type, position)
JOIN kind k ON k.oid = a.type JOIN result ON result.oid = c.oid JOIN kind r ON r.oid = result.type
GROUP BY 1, 2, 3, 4, 5, 6, 7
UNION ALL
SELECT t.oid::bigint, t.typname, 0, t.oid::bigint, false, '', false, true
FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
WHERE t.typname = ANY (:names) AND (pg_catalog.pg_type_is_visible(t.oid) OR n.nspname = ANY (:schemas))
  AND (t.typmodin::oid <> 0::oid OR t.typtype = 'd')
"""
"""Functions, and types: `"timestamp"(x)` is a cast. One without the precision that its type may have keeps a value."""

_MYSQL = """
SELECT specific_schema AS owner, lower(specific_name) AS function, ordinal_position AS position, parameter_name AS name,
       dtd_identifier AS type, data_type AS base, numeric_precision AS digits, numeric_scale AS scale,
       character_maximum_length AS length, datetime_precision AS second_digits
FROM information_schema.parameters
WHERE routine_type = 'FUNCTION' AND json_contains(:names, json_quote(lower(specific_name)))
  AND (specific_schema = database() OR json_contains(:schemas, json_quote(lower(specific_schema))))
ORDER BY 1, 2, 3
"""

_MOST_ARGUMENTS = 100


@dataclass(frozen=True, slots=True)
class Routines:
    """Functions by their names in lower case and the positions of arguments, from 0.

    ``passing`` are the arguments that may be the result, ``arguments`` what those of own functions hold, one of each
    function of this name.
    """

    passing: frozenset[tuple[str, int]] = frozenset()
    arguments: Mapping[tuple[str, int], tuple[ParameterColumn, ...]] = field(default_factory=dict)


async def read_routines(statement: ParsedSql, query: Query) -> Routines:
    """The functions that the statement calls, without those of SQL itself.

    None for the engine's own tables, to which it fits its values.
    """
    functions = {
        (schema, name)
        for schema, name in called_functions(statement)
        if schema or name not in {*PASSING_FUNCTIONS, "cast"}
    }
    tables = written_tables(statement)
    if (
        not functions
        or statement.dialect == "sqlite"
        or (tables and all(is_engine_table(schema, name) for _, schema, name in tables))
    ):
        return Routines()
    names, schemas = sorted({name for _, name in functions}), sorted({schema for schema, _ in functions if schema})
    if statement.dialect == "postgresql":
        is_named = any(sign in statement.source for sign in ("=>", ":="))
        return await _of_postgresql(names, schemas, query, is_named=is_named)
    lists = {"names": [name.lower() for name in names], "schemas": [schema.lower() for schema in schemas]}
    return _of_mysql(await query(_MYSQL, {key: encode_json(value).decode() for key, value in lists.items()}))


async def _of_postgresql(names: list[str], schemas: list[str], query: Query, *, is_named: bool) -> Routines:
    """``is_named``: arguments may have names, and so any position."""
    rows = await query(_POSTGRESQL, {"names": names, "schemas": schemas})
    own = [row for row in rows if row["is_own"]]
    types = await read_types({int(row["type"]) for row in own}, query) if own else {}
    passing: set[tuple[str, int]] = set()
    arguments: dict[tuple[str, int], tuple[ParameterColumn, ...]] = {}
    for row in rows:
        name, position = str(row["name"]).lower(), int(row["position"])
        if row["passes"]:
            last = _MOST_ARGUMENTS if row["is_variadic"] or is_named else position + 1
            passing |= {(name, at) for at in range(0 if is_named else position, last)}
    for row in own:
        key = (str(row["name"]).lower(), int(row["position"]))
        column = types.get(int(row["type"]), ParameterColumn("", "", "other"))
        arguments[key] = (*arguments.get(key, ()), column)
    return Routines(frozenset(passing), arguments)


_NUMBERS = frozenset(["tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "float", "double", "bit", "year"])
_TIMES = frozenset(["date", "time", "datetime", "timestamp"])


def _category(base: str) -> str:
    return "number" if base in _NUMBERS else "time" if base in _TIMES else "text"


def _of_mysql(rows: Any) -> Routines:
    passing: set[tuple[str, int]] = set()
    arguments: dict[tuple[str, int], tuple[ParameterColumn, ...]] = {}
    for (_, name), of_function in groupby(rows, key=lambda row: (row["owner"], row["function"])):
        result, *given = of_function
        for row in given:
            key = (str(name), int(row["position"]) - 1)
            arguments[key] = (*arguments.get(key, ()), mysql_column(row))
            if _category(str(row["base"]).lower()) == _category(str(result["base"]).lower()):
                passing.add(key)
    return Routines(frozenset(passing), arguments)
