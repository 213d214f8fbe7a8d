"""Reasons for a PostgreSQL table to refuse a publish, checked against the catalog and against the staged rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from decimal import InvalidOperation
from typing import Any

from psycopg import sql

from saga_spark.column_values import finite_number
from saga_spark.job.job_spec import Output
from saga_spark.manifest import Manifest
from saga_spark.sinks.column_names import column_name_problems
from saga_spark.sinks.postgresql.tables import (
    FOREIGN_KEY_COLUMNS,
    PgConnection,
    TargetTable,
    identifiers,
    keys_equal,
    postgresql_type,
    type_problem,
)
from saga_spark.sinks.postgresql.where_clause import where_clause
from sagas.text.exact_numbers import is_exact_double, is_exact_single
from sagas.text.shortening import counted

OVERWRITE_MODES = ("overwrite", "overwrite_where")

_FOREIGN_KEYS = f"""
select c.conname, c.confrelid::regclass::text, c.confrelid = c.conrelid,
{FOREIGN_KEY_COLUMNS}
from pg_constraint c where c.contype = 'f' and c.conrelid = %s and c.conparentid = 0::oid
"""


_FORGETTING_KEYS = """
select c.conrelid::regclass::text, pg_catalog.array_agg(a.attname::text order by a.attnum)
from pg_constraint c join pg_attribute a on a.attrelid = c.confrelid and a.attnum = any(c.confkey)
where c.contype = 'f' and c.confrelid = %s and c.conparentid = 0::oid and c.confupdtype in ('n', 'd')
      and a.attname = any(%s) group by c.oid, c.conrelid
"""
"""Foreign keys whose columns lose their values when a row that they refer to gets another key."""


def table_problems(connection: PgConnection, table: TargetTable, output: Output, manifest: Manifest) -> list[str]:
    """Problems with permissions, columns, types and keys: one message each."""
    problems = list(_schema_problems(connection, table))
    problems += column_name_problems("postgresql", manifest.schema)
    if table.oid is None:
        return problems + list(_creation_problems(table, output, manifest))
    if table.kind not in ("r", "p"):
        return [*problems, f"{table.qualified_name} is not a table"]
    for rule in table.rules:
        problems.append(f"{table.qualified_name} has the rule {rule}, which rewrites writes; replace it by a trigger")
    problems += _permission_problems(connection, table, output)
    problems += _column_problems(table, manifest)
    problems += _name_problems(output, {field["name"] for field in manifest.schema["fields"]}, table)
    problems += _float_problems(output, table)
    if output.mode == "merge" and not any(set(unique) == set(output.key) for unique in table.unique):
        problems.append(
            f"{table.qualified_name} has no unique index on {', '.join(output.key)}, which the mode merge needs"
        )
    if output.mode in OVERWRITE_MODES:
        refer = "select distinct conrelid::regclass::text from pg_constraint where contype = 'f' and confrelid = %s"
        for (other,) in connection.execute(refer, (table.oid,)):
            problems.append(
                f"{other} references {table.qualified_name}, so its rows cannot be replaced; use merge or append"
            )
    if output.mode == "merge":
        changed = [field["name"] for field in manifest.schema["fields"] if field["name"] not in output.key]
        for other, columns in connection.execute(_FORGETTING_KEYS, (table.oid, changed)):
            problems.append(
                f"{other} loses its references to {', '.join(columns)} of {table.qualified_name} when a merge changes "
                "them (SET NULL or SET DEFAULT), and an undo could not restore them; use ON UPDATE CASCADE, or leave "
                "the columns out"
            )
    return problems


def row_problems(
    connection: PgConnection, table: TargetTable, output: Output, stage: str, columns: set[str]
) -> list[str]:
    """Constraints that the loaded rows would violate. NOT NULL and CHECK were already enforced by the stage table."""
    staged = sql.Identifier(stage)
    problems: list[str] = []
    if output.mode == "overwrite_where":
        where = where_clause(output.where)
        outside = _count(
            connection, "select count(*) from {stage} where ({where}) is not true", stage=staged, where=where
        )
        if outside:
            problems.append(
                f"{counted(outside, 'row is', 'rows are')} outside of the range `where` that the mode overwrites"
            )
    keys = set(table.unique)
    if output.mode == "merge" or output.key:
        keys.add(output.key)
        nulls = sql.SQL(" or ").join(sql.SQL("{} IS NULL").format(sql.Identifier(name)) for name in output.key)
        without_key = _count(connection, "select count(*) from {stage} where {nulls}", stage=staged, nulls=nulls)
        if without_key:
            problems.append(
                f"{counted(without_key, 'row has', 'rows have')} no {' or '.join(output.key)}, which is part of `key`"
            )
    for key in sorted(candidate for candidate in keys if set(candidate) <= columns):
        problems += _duplicate_problems(connection, table, output, staged, key)
    if table.oid is not None:
        for name, parent, is_tree, referencing, referenced in connection.execute(
            _FOREIGN_KEYS, (table.oid,)
        ).fetchall():
            if set(referencing) <= columns:
                among = staged if is_tree and set(referenced) <= columns else None
                problems += _foreign_key_problems(connection, staged, among, name, parent, referencing, referenced)
    return problems


_UNCHECKED = """
select exists (select from pg_trigger where tgrelid in (select oid from family) and not tgisinternal
               and tgenabled in ('O', 'A'))
    or exists (select from pg_class where oid = %(table)s and relkind = 'p')
    or exists (select from pg_attribute where attrelid = %(table)s and attnum > 0 and not attisdropped
               and (atthasdef or attidentity <> '') and attname <> all(%(columns)s))
    or exists (select from pg_constraint where conrelid = %(table)s and contype in ('c', 'f', 'x', 't') and (
               contype in ('x', 't') or not conkey <@ array(
                   select attnum from pg_attribute where attrelid = %(table)s and attname = any(%(columns)s))))
    or exists (select from pg_index where indrelid = %(table)s and indisunique
               and (not indimmediate or indpred is not null or indexprs is not null))
    or exists (select from pg_constraint where conrelid = %(table)s and not convalidated)
    or exists (select from pg_constraint where contype = 'f' and confrelid = %(table)s and conparentid = 0::oid
               and confdeltype in ('c', 'n', 'd'))
"""


def needs_rehearsal(connection: PgConnection, table: TargetTable, columns: set[str]) -> bool:
    """True if only a write shows whether the table accepts the rows and their undo: it has triggers, partitions,
    defaults or computed values, constraints on columns that the output lacks, unique indexes that ``row_problems`` does
    not compare, constraints that its old rows may violate, or rows of others that are deleted or changed with its own.
    """
    family = (
        "with family as (select %(table)s::oid as oid"
        " union select relid::oid from pg_catalog.pg_partition_tree(%(table)s)) "
    )
    values = {"table": table.oid, "columns": sorted(columns)}
    row = connection.execute(family + _UNCHECKED, values).fetchone()  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert row is not None
    return row[0]


def _schema_problems(connection: PgConnection, table: TargetTable) -> Iterator[str]:
    row = connection.execute(
        "select current_user, current_schema(), has_schema_privilege(current_schema(), 'create'), "
        "has_schema_privilege(to_regnamespace(quote_ident(%s)), 'create')",
        (table.schema,),
    ).fetchone()
    assert row is not None
    user, schema, may_create, may_create_there = row
    if schema is None:
        yield f"the search path of {user} has no schema for stage tables"
    elif not may_create:
        yield f"{user} may not create stage tables in the schema {schema}; grant create"
    if table.oid is None and may_create_there is None:
        yield f"the schema {table.schema} for the new table {table.name} does not exist"
    elif table.oid is None and not may_create_there:
        yield f"the table {table.qualified_name} does not exist, and {user} may not create it"


def _creation_problems(table: TargetTable, output: Output, manifest: Manifest) -> Iterator[str]:
    for field in manifest.schema["fields"]:
        if postgresql_type(field["type"]) is None:
            yield f"the column {field['name']} has the type {field['type']}, which PostgreSQL does not support"
    names = {field["name"] for field in manifest.schema["fields"]}
    for name in [*output.key, *output.where]:
        if name not in names:
            yield f"{table.qualified_name} would be created without the column {name}"


def _permission_problems(connection: PgConnection, table: TargetTable, output: Output) -> Iterator[str]:
    # The undo, and recording what it needs, require delete and select.
    needed = ["select", "insert", "delete", *(["update"] if output.mode == "merge" else [])]
    for name in needed:
        row = connection.execute("select current_user, has_table_privilege(%s::oid, %s)", (table.oid, name)).fetchone()
        if row is not None and not row[1]:
            yield f"{row[0]} has no {name} permission on {table.qualified_name}"
    if table.row_security:
        yield f"row security hides rows of {table.qualified_name}, so a publication could not be reverted exactly"


def _column_problems(table: TargetTable, manifest: Manifest) -> Iterator[str]:
    nulls = {column.name: column.nulls for column in manifest.columns}
    staged: dict[str, Any] = {field["name"]: field["type"] for field in manifest.schema["fields"]}
    for name, type in staged.items():
        column = table.column(name)
        if column is None:
            yield f"{table.qualified_name} has no column {name}"
        elif column.generated or column.always_identity:
            yield f"the column {name} of {table.qualified_name} is computed by the database and cannot be written"
        elif (problem := type_problem(type, column.type)) is not None:
            yield f"the column {name}: {problem}"
        elif column.not_null and nulls.get(name):
            yield (
                f"the column {name} of {table.qualified_name} is NOT NULL, but "
                f"{counted(nulls[name], 'row has', 'rows have')} no value"
            )
    for column in table.columns:
        if column.name not in staged and column.not_null and not (column.has_default or column.generated):
            yield f"the column {column.name} of {table.qualified_name} is NOT NULL, but the output has no such column"


def _name_problems(output: Output, staged: set[str], table: TargetTable) -> Iterator[str]:
    for field, names in (("where", output.where), ("key", output.key)):
        for name in names:
            if table.column(name) is None:
                yield f"{table.qualified_name} has no column {name}, which `{field}` names"
            elif name not in staged:
                yield f"the output has no column {name}, which `{field}` names"


def _float_problems(output: Output, table: TargetTable) -> Iterator[str]:
    """Numbers that PostgreSQL would round to those of other rows."""
    for name, values in output.where.items():
        column = table.column(name)
        if column is None or column.type not in ("real", "double precision"):
            continue
        is_exact = is_exact_single if column.type == "real" else is_exact_double
        for value in values if isinstance(values, list) else [values]:
            with contextlib.suppress(ValueError, InvalidOperation):  # no number, which PostgreSQL refuses itself
                if not is_exact(finite_number(value)):
                    yield f"the column {name} of {table.qualified_name} is {column.type} and cannot be {value}"


def _duplicate_problems(
    connection: PgConnection, table: TargetTable, output: Output, stage: sql.Identifier, key: tuple[str, ...]
) -> Iterator[str]:
    key_text = ", ".join(key)
    present = sql.SQL(" and ").join(sql.SQL("{} is not null").format(sql.Identifier(name)) for name in key)
    duplicates = _count(
        connection,
        "select count(*) from (select from {stage} where {present} group by {key} having count(*) > 1) as twice",
        stage=stage,
        present=present,
        key=identifiers(key),
    )
    if duplicates:
        yield (
            f"{counted(duplicates, 'value')} of {key_text} {'occurs' if duplicates == 1 else 'occur'} more "
            f"than once, but must be unique"
        )
    if table.oid is None or output.mode == "overwrite" or (output.mode == "merge" and set(key) == set(output.key)):
        return
    stays = sql.SQL("true")
    if output.mode == "overwrite_where":
        stays = sql.SQL("({}) is not true").format(where_clause(output.where, "t"))
    elif output.mode == "merge":
        stays = sql.SQL("not ({})").format(keys_equal("t", "s", output.key))
    taken = _count(
        connection,
        "select count(*) from {table} as t join {stage} as s on {same} where {stays}",
        table=table.sql,
        stage=stage,
        same=keys_equal("t", "s", key),
        stays=stays,
    )
    if taken:
        yield (
            f"{counted(taken, 'value')} of {key_text} already {'exists' if taken == 1 else 'exist'} in "
            f"{table.qualified_name}, but must be unique"
        )


def _foreign_key_problems(
    connection: PgConnection,
    stage: sql.Identifier,
    among: sql.Identifier | None,
    name: str,
    parent: str,
    referencing: list[str],
    referenced: list[str],
) -> Iterator[str]:
    """The problem of staged rows that a foreign key refuses, if there are any. ``among``: rows that refer to rows of
    the same table may also refer to those that are written with them.
    """
    pairs = zip(referencing, referenced, strict=True)
    same = sql.SQL(" and ").join(
        sql.SQL("{} = {}").format(sql.Identifier("s", column), sql.Identifier("p", other)) for column, other in pairs
    )
    present = sql.SQL(" and ").join(
        sql.SQL("{} is not null").format(sql.Identifier("s", column)) for column in referencing
    )
    parents = sql.SQL(parent)  # pyright: ignore[reportArgumentType]  # regclass has quoted it
    absent = sql.SQL(" and ").join(
        sql.SQL("not exists (select from {} as p where {})").format(rows, same)
        for rows in (parents, among)
        if rows is not None
    )
    missing = _count(
        connection,
        "select count(*) from {stage} as s where {present} and {absent}",
        stage=stage,
        absent=absent,
        present=present,
    )
    if missing:
        yield f"{counted(missing, 'row references', 'rows reference')} no row of {parent} ({name})"


def _count(connection: PgConnection, statement: str, **parts: sql.Composable) -> int:
    text = sql.SQL(statement).format(**parts)  # pyright: ignore[reportArgumentType]
    row = connection.execute(text).fetchone()
    assert row is not None
    return row[0]
