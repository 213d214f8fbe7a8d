"""Roles that may create objects where the worker's SQL looks for them: such a role runs code as the worker."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_workers.doctor.doctor_result import DoctorResult
from sagas.text.shortening import join_names

# The owner of a schema owns what is in it. What pg_catalog has comes first, unless the path says otherwise.
_CREATORS = text("""
    SELECT n.nspname::text AS schema, coalesce(r.rolname::text, 'public') AS role
    FROM pg_catalog.pg_namespace n CROSS JOIN LATERAL pg_catalog.aclexplode(n.nspacl) a
    LEFT JOIN pg_catalog.pg_roles r ON r.oid = a.grantee
    WHERE n.nspname::text = ANY(pg_catalog.current_schemas(false)::text[]) AND a.privilege_type = 'CREATE'
      AND a.grantee <> n.nspowner AND coalesce(r.rolname::text, '') <> current_user::text
      AND NOT coalesce(r.rolsuper, false)
    ORDER BY schema, role
""")
_FIRST_SCHEMA = text(
    "SELECT schema FROM pg_catalog.unnest(pg_catalog.current_schemas(true)::text[]) AS s (schema)"
    " WHERE schema NOT LIKE 'pg\\_temp\\_%' LIMIT 1"
)
_MAX_NAMES = 5


async def check_schema_rights(name: str, engine: AsyncEngine) -> list[DoctorResult]:
    """Fail for each other role that may create objects in a schema of the search_path. Raises SQLAlchemyError."""
    if engine.dialect.name != "postgresql":
        return []
    async with engine.connect() as connection:
        creators = (await connection.execute(_CREATORS)).all()
        first = (await connection.execute(_FIRST_SCHEMA)).scalar()
    check = f"search_path of {name}"
    if first != "pg_catalog":
        message = f"the search_path has {first} before pg_catalog, so what is there replaces functions of PostgreSQL"
        return [DoctorResult(check, False, message, "remove pg_catalog from the search_path: it then comes first")]
    if not creators:
        return [DoctorResult(check, True, "no other role may create objects in its schemas")]
    roles = join_names([f"{creator.role} in {creator.schema}" for creator in creators], limit=_MAX_NAMES)
    message = f"other roles may create objects that SQL of the worker uses ({roles}): they can run code as the worker"
    schema, role = creators[0].schema, creators[0].role
    return [DoctorResult(check, False, message, f"revoke create on schema {schema} from {role}")]
