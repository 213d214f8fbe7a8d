"""Roles that may create objects where the worker's SQL uses them: such a role runs code as the worker.

The owner of the database is not named: whoever owns it, or is a superuser, can always do that.
"""

from __future__ import annotations

import re

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_workers.doctor.doctor_result import DoctorResult
from sagas.text.shortening import join_names
from sagas.text.sql_names import sql_name

_STRANGERS = """
    strangers AS (
        SELECT r.oid, r.rolname::text AS role FROM pg_catalog.pg_roles r
        WHERE NOT r.rolsuper AND r.rolname <> current_user AND r.rolname <> 'pg_database_owner' AND r.oid <> (
            SELECT d.datdba FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
        UNION ALL SELECT 0::oid, NULL::text
    )
"""
"""The roles that are no owner of the database; 0 is everybody."""

# What pg_catalog has comes first, unless the path says otherwise.
_RIGHTS = text(f"""
    WITH {_STRANGERS}, path AS (
        SELECT n.oid, n.nspname::text AS name, n.nspowner AS owner, n.nspacl AS acl FROM pg_catalog.pg_namespace n
        WHERE n.nspname::text = ANY(pg_catalog.current_schemas(false)::text[])
    )
    SELECT 'create' AS right, p.name AS schema, NULL::text AS object, s.role FROM path p
    CROSS JOIN LATERAL pg_catalog.aclexplode(p.acl) a JOIN strangers s ON s.oid = a.grantee
    WHERE a.privilege_type = 'CREATE' AND a.grantee <> p.owner
    UNION SELECT 'owner', p.name, NULL::text, s.role FROM path p JOIN strangers s ON s.oid = p.owner
    UNION SELECT 'trigger', n.nspname::text, c.relname::text, s.role FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    CROSS JOIN LATERAL pg_catalog.aclexplode(c.relacl) a JOIN strangers s ON s.oid = a.grantee
    WHERE c.relkind IN ('r', 'p') AND a.privilege_type = 'TRIGGER' AND a.grantee <> c.relowner
      AND pg_catalog.has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE')
    ORDER BY 2, 3, 4
""")  # noqa: S608 - constants
_CREATORS_OF_SCHEMAS = text(f"""
    WITH {_STRANGERS}
    SELECT 'schema' AS right, d.datname::text AS schema, NULL::text AS object, s.role FROM pg_catalog.pg_database d
    CROSS JOIN LATERAL pg_catalog.aclexplode(d.datacl) a JOIN strangers s ON s.oid = a.grantee
    WHERE d.datname = pg_catalog.current_database() AND a.privilege_type = 'CREATE' ORDER BY 4
""")  # noqa: S608 - constants
_PATH = text("""
    SELECT pg_catalog.current_setting('search_path'), current_user::text,
      ARRAY(SELECT n.nspname::text FROM pg_catalog.pg_namespace n)
""")
_FIRST_SCHEMA = text(
    "SELECT schema FROM pg_catalog.unnest(pg_catalog.current_schemas(true)::text[]) AS s (schema)"
    " WHERE schema NOT LIKE 'pg\\_temp\\_%' LIMIT 1"
)
_NAME = re.compile(r'"((?:[^"]|"")*)"|([^\s,"]+)')
_MAX_NAMES = 5


async def check_schema_rights(name: str, engine: AsyncEngine) -> list[DoctorResult]:
    """Fail for each other role that may create objects which the worker's SQL uses. Raises SQLAlchemyError."""
    if engine.dialect.name != "postgresql":
        return []
    async with engine.connect() as connection:
        rights = [*(await connection.execute(_RIGHTS)).all()]
        path, user, schemas = (await connection.execute(_PATH)).one()
        if missing := [schema for schema in _names(path, user) if schema not in schemas]:
            rights += (await connection.execute(_CREATORS_OF_SCHEMAS)).all()
        first = (await connection.execute(_FIRST_SCHEMA)).scalar()
    check = f"search_path of {name}"
    if first != "pg_catalog":
        message = f"the search_path has {first} before pg_catalog, so what is there replaces functions of PostgreSQL"
        return [DoctorResult(check, False, message, "remove pg_catalog from the search_path: it then comes first")]
    if not rights:
        return [DoctorResult(check, True, "only the owner of the database may create objects in its schemas")]
    roles = join_names([_words(right, missing) for right in rights], limit=_MAX_NAMES)
    message = f"other roles may create objects that SQL of the worker uses ({roles}): they can run code as the worker"
    return [DoctorResult(check, False, message, _remedy(rights[0], user))]


def _names(path: str, user: str) -> list[str]:
    """The schemas of a search_path, whether they exist or not."""
    names = [quoted.replace('""', '"') or plain.lower() for quoted, plain in _NAME.findall(path)]
    return [user if name == "$user" else name for name in names]


def _words(right: object, missing: list[str]) -> str:
    kind, schema, table, role = right  # pyright: ignore[reportGeneralTypeIssues]
    role = role or "public"
    match kind:
        case "owner":
            return f"{role} owns {schema}"
        case "trigger":
            return f"{role} by triggers of {schema}.{table}"
        case "schema":
            return f"{role} by a new schema {missing[0]}"
    return f"{role} in {schema}"


def _remedy(right: object, user: str) -> str:
    kind, schema, table, role = right  # pyright: ignore[reportGeneralTypeIssues]
    grantee = sql_name(role) if role else "public"
    match kind:
        case "owner":
            return f"alter schema {sql_name(schema)} owner to {sql_name(user)}"
        case "trigger":
            return f"revoke trigger on {sql_name(schema)}.{sql_name(table)} from {grantee}"
        case "schema":
            return f"revoke create on database {sql_name(schema)} from {grantee}"
    return f"revoke create on schema {sql_name(schema)} from {grantee}"
