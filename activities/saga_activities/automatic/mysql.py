"""Tables of MySQL and MariaDB, as the information schema describes them.

Numbers and times are read as decimal text, bytes as hexadecimal; types without an exact text are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from saga_activities.automatic.table_shape import Column, Reference, TableShape
from saga_activities.guard.session import Row, SqlSession
from sagas.builtins.row_changes import NotImageable

_TABLE = """
SELECT table_schema AS table_schema_, table_name AS table_name_, table_type AS kind, engine AS engine_,
  version() AS version_
FROM information_schema.tables WHERE table_schema = coalesce(:schema, database()) AND table_name = :name
"""
_COLUMNS = """
SELECT column_name AS name, data_type AS type, extra AS extra_, generation_expression AS generated
FROM information_schema.columns WHERE table_schema = :schema AND table_name = :name ORDER BY ordinal_position
"""
_KEYS = """
SELECT index_name AS index_, column_name AS name FROM information_schema.statistics
WHERE table_schema = :schema AND table_name = :name AND non_unique = 0 ORDER BY index_name, seq_in_index
"""
_TRIGGERS = """
SELECT trigger_name AS name FROM information_schema.triggers
WHERE event_object_schema = :schema AND event_object_table = :name ORDER BY trigger_name
"""
_MAY_SEE_TRIGGERS = """
SELECT 1 AS yes FROM (
  SELECT grantee, privilege_type FROM information_schema.user_privileges
  UNION ALL SELECT grantee, privilege_type FROM information_schema.schema_privileges WHERE :schema LIKE table_schema
  UNION ALL SELECT grantee, privilege_type FROM information_schema.table_privileges
    WHERE table_schema = :schema AND table_name = :name
) AS granted
WHERE privilege_type = 'TRIGGER' AND grantee = concat('''', replace(current_user(), '@', '''@'''), '''') LIMIT 1
"""
_REFERENCES = """
SELECT r.table_name AS table_, r.delete_rule AS on_delete, r.update_rule AS on_update,
  k.referenced_column_name AS name
FROM information_schema.referential_constraints r
JOIN information_schema.key_column_usage k
  ON k.constraint_schema = r.constraint_schema AND k.constraint_name = r.constraint_name
  AND k.table_name = r.table_name
WHERE r.unique_constraint_schema = :schema AND r.referenced_table_name = :name
"""
_NULLABLE_REFERENCES = """
SELECT DISTINCT c.column_name AS name FROM information_schema.key_column_usage k JOIN information_schema.columns c
  ON c.table_schema = k.table_schema AND c.table_name = k.table_name AND c.column_name = k.column_name
WHERE k.table_schema = :schema AND k.table_name = :name AND k.referenced_table_name IS NOT NULL
  AND c.is_nullable = 'YES'
"""
_ROUTINES = """
SELECT routine_name AS name FROM information_schema.routines
WHERE routine_type = 'FUNCTION' AND routine_schema = database()
"""

_TEXT_TYPES = frozenset(
    """
    tinyint smallint mediumint int bigint decimal char varchar tinytext text mediumtext longtext date datetime time year
    enum set json double uuid inet4 inet6
    """.split()  # noqa: SIM905
)
_BYTE_TYPES = frozenset(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"))
_CHANGING_RULES = ("CASCADE", "SET NULL", "SET DEFAULT")
_ENGINES = ("InnoDB",)
_NO_KEYS = "MySQL does not return the keys of inserted rows, as MariaDB does"


async def read_shape(sql: SqlSession, schema: str | None, name: str) -> TableShape:
    """One table. Raises :class:`NotImageable` if it does not exist."""
    table = await sql.one_or_none(_TABLE, {"schema": schema, "name": name})
    if table is None:
        raise NotImageable(f"there is no table {name} in this database")
    where = {"schema": table["table_schema_"], "name": table["table_name_"]}
    shown = f"{where['schema']}.{where['name']}"
    columns = await sql.all(_COLUMNS, where)
    keys: dict[str, list[str]] = {}
    for row in await sql.all(_KEYS, where):
        keys.setdefault(row["index_"], []).append(row["name"])
    obstacles = [*_table_obstacles(table, columns, shown)]
    triggers = await sql.all(_TRIGGERS, where)
    if triggers:
        obstacles.append(f"{shown} has the trigger {triggers[0]['name']}, which may change other rows")
    elif await sql.one_or_none(_MAY_SEE_TRIGGERS, where) is None:
        obstacles.append(f"the user of the connection cannot see whether {shown} has triggers; grant it TRIGGER")
    return TableShape(
        name=shown,
        quoted=f"{quote(where['schema'])}.{quote(where['name'])}",
        key=tuple(keys.get("PRIMARY", ())),
        columns=tuple(_column(row) for row in columns if not row["generated"]),
        references=tuple(_references(await sql.all(_REFERENCES, where))),
        unique_keys=tuple(tuple(key) for key in keys.values()),
        obstacles=tuple(obstacles),
        insert_obstacle=None if "mariadb" in table["version_"].lower() else _NO_KEYS,
    )


def _table_obstacles(table: Row, columns: Sequence[Row], shown: str) -> Iterator[str]:
    if table["kind"] != "BASE TABLE":
        yield f"{shown} is not an ordinary table"
    elif table["engine_"] not in _ENGINES:
        yield f"the engine of {shown} ({table['engine_']}) has no transactions; use InnoDB"
    for row in columns:
        if row["type"].lower() not in _TEXT_TYPES | _BYTE_TYPES | {"float", "bit", "timestamp"}:
            yield f"values of {row['name']} ({row['type']}) have no exact text"


def _column(row: Row) -> Column:
    quoted, kind = quote(row["name"]), row["type"].lower()
    rewritten = "on update" in row["extra_"].lower()
    read, write = f"CAST({quoted} AS CHAR)", "{}"
    if kind in _BYTE_TYPES:
        read, write = f"HEX({quoted})", "UNHEX({})"
    elif kind == "float":
        read = f"CAST(CAST({quoted} AS DOUBLE) AS CHAR)"
    elif kind == "bit":
        read, write = f"CAST({quoted} + 0 AS CHAR)", "CAST({} AS UNSIGNED)"
    elif kind == "timestamp":  # its own text depends on the time zone, and is ambiguous for an hour of the year
        read, write = f"CAST(UNIX_TIMESTAMP({quoted}) AS CHAR)", "FROM_UNIXTIME({})"
    return Column(row["name"], quoted, read, write, rewritten)


def _references(rows: Iterable[Row]) -> Iterator[Reference]:
    for row in rows:
        on_delete, on_update = row["on_delete"] in _CHANGING_RULES, row["on_update"] in _CHANGING_RULES
        if on_delete or on_update:
            yield Reference(row["table_"], (row["name"],), on_delete, on_update)


async def open_references(sql: SqlSession, table: TableShape, condition: str, values: Mapping[str, object]) -> None:
    """Set the foreign keys of some rows to NULL: InnoDB refuses to delete a row that refers to itself."""
    schema, _, name = table.name.partition(".")
    columns = [quote(row["name"]) for row in await sql.all(_NULLABLE_REFERENCES, {"schema": schema, "name": name})]
    if columns:
        assignments = ", ".join(f"{column} = NULL" for column in columns)
        await sql.run(f"UPDATE {table.quoted} SET {assignments} WHERE {condition}", values)


async def check_functions(sql: SqlSession, names: Sequence[str]) -> None:
    """Raise :class:`NotImageable` if a stored function is called: the database does not say what it changes."""
    stored = {row["name"].lower() for row in await sql.all(_ROUTINES)} if names else set()
    if called := sorted(stored & set(names)):
        raise NotImageable(f"the stored function {called[0]} may have an effect of its own")


def quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
