"""The roles of the embedded PostgreSQL: each database of the project belongs to one that can do nothing else.

A superuser may write files and run programs on this machine, so no saga gets that role.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, LiteralString

from sagas.errors import SagaError

if TYPE_CHECKING:
    import psycopg

SUPERUSER = "postgres"

_LOCK_TIMEOUT = "10s"

_LONGEST_NAME = 63 - len("saga_")
"""Bytes of a database's name; PostgreSQL cuts a longer name of its role, which may then be that of another one."""

_RIGHTS = "login nosuperuser nocreatedb nocreaterole noreplication nobypassrls"


def role_of(database: str) -> str:
    """The owner of a database."""
    return f"saga_{database}"


def role_password(database: str, superuser_password: str) -> str:
    """The password of the owner; it follows from the superuser's, so there is no other file to keep."""
    return hmac.new(superuser_password.encode(), role_of(database).encode(), hashlib.sha256).hexdigest()


def create_databases(admin: psycopg.Connection, names: list[str], superuser_password: str) -> None:
    """Create missing databases, each with its owner; those of the superuser change their owner.

    A role of that name without its database is made anew, because whoever made it may have kept rights over it; and no
    other role is a member of an owner, or has one as a member.

    Raises:
        SagaError: such a role owns something or has rights, or a name is too long for its role.
    """
    import psycopg
    from psycopg import sql

    for name in names:
        if len(name.encode()) > _LONGEST_NAME:
            raise SagaError(
                f"connection {name}: its name is longer than {_LONGEST_NAME} bytes, so the embedded PostgreSQL cannot "
                "name its role; shorten it in saga.toml, or give the connection a url"
            )
    for template in ("postgres", "template1"):  # a session in template1 would also keep others from copying it
        admin.execute(sql.SQL("revoke connect on database {} from public").format(sql.Identifier(template)))
    roles = {name for (name,) in admin.execute("select rolname from pg_roles")}
    databases = {name for (name,) in admin.execute("select datname from pg_database")}
    for name in names:
        database, role = sql.Identifier(name), sql.Identifier(role_of(name))
        if role_of(name) in roles and name not in databases:
            try:
                admin.execute(sql.SQL("drop role {}").format(role))
            except psycopg.errors.DependentObjectsStillExist as error:
                raise SagaError(
                    f"the role {role_of(name)} of the embedded PostgreSQL exists without the database {name}, and has "
                    "objects or rights; take them away and drop the role, then run saga dev up"
                ) from error
        if role_of(name) not in roles or name not in databases:
            admin.execute(sql.SQL("create role {}").format(role))
        password = sql.Literal(role_password(name, superuser_password))
        admin.execute(sql.SQL("alter role {} with {} password {}").format(role, sql.SQL(_RIGHTS), password))
        for (statement,) in admin.execute(_MEMBERSHIPS, {"role": role_of(name)}).fetchall():
            admin.execute(statement)
        if name not in databases:
            admin.execute(sql.SQL("create database {} owner {} template template0").format(database, role))
        admin.execute(sql.SQL("alter database {} owner to {}").format(database, role))
        admin.execute(sql.SQL("revoke connect on database {} from public").format(database))


_MEMBERSHIPS: LiteralString = """
select pg_catalog.format('revoke %%I from %%I granted by %%I cascade', r.rolname, m.rolname, g.rolname)
from pg_catalog.pg_auth_members a
join pg_catalog.pg_roles r on r.oid = a.roleid join pg_catalog.pg_roles m on m.oid = a.member
join pg_catalog.pg_roles g on g.oid = a.grantor
where %(role)s::text in (r.rolname::text, m.rolname::text)
"""


def give_objects_to_owner(inside: psycopg.Connection, name: str) -> None:
    """Make the owner of a database the owner of what the superuser created in it, and let it use what comes later.

    PostgreSQL's `reassign owned` refuses for the superuser of the cluster, to whom the catalogs belong.

    Raises:
        SagaError: a transaction holds one of the objects.
    """
    import psycopg
    from psycopg import sql

    role = sql.Identifier(role_of(name))
    try:
        with inside.transaction():
            inside.execute(sql.SQL("set local lock_timeout = {}").format(sql.Literal(_LOCK_TIMEOUT)))
            statements = inside.execute(_OBJECTS_OF_SUPERUSER, {"role": role_of(name)}).fetchall()
            for (statement,) in statements:
                inside.execute(statement)
            for kind in ("tables", "sequences", "schemas"):
                inside.execute(
                    sql.SQL("alter default privileges for role {} grant all on {} to {}").format(
                        sql.Identifier(SUPERUSER), sql.SQL(kind), role
                    )
                )
    except psycopg.errors.LockNotAvailable as error:
        raise SagaError(
            f"the tables of {name} could not be given to the role {role_of(name)}, because a transaction holds one; "
            "end it (see pg_stat_activity and pg_prepared_xacts), then run saga dev up"
        ) from error


# Left out: members of extensions, and what follows its table (indexes, sequences of columns, row and array types).
_OBJECTS_OF_SUPERUSER: LiteralString = """
with superuser as (select oid from pg_roles where rolname = 'postgres'),
schemas as (
  select oid, nspname from pg_namespace where nspname !~ '^pg_' and nspname <> 'information_schema'
),
members as (select classid, objid from pg_depend where deptype = 'e'),
of_columns as (select objid from pg_depend where classid = 'pg_class'::regclass::oid and deptype in ('a', 'i')),
objects as (
  select 1 as turn, pg_catalog.format('schema %%I', nspname) as object
  from pg_namespace join schemas using (oid, nspname)
  where nspowner in (table superuser)
    and oid not in (select objid from members where classid = 'pg_namespace'::regclass::oid)
  union all
  select 2, pg_catalog.format('%%s %%I.%%I', case relkind when 'v' then 'view' when 'm' then 'materialized view'
    when 'S' then 'sequence' when 'f' then 'foreign table' else 'table' end, nspname, relname)
  from pg_class join schemas on schemas.oid = relnamespace
  where relowner in (table superuser) and relkind in ('r', 'p', 'v', 'm', 'S', 'f')
    and pg_class.oid not in (select objid from members where classid = 'pg_class'::regclass::oid)
    and not (relkind = 'S' and pg_class.oid in (table of_columns))
  union all
  select 3, pg_catalog.format('routine %%s', pg_proc.oid::regprocedure)
  from pg_proc join schemas on schemas.oid = pronamespace
  where proowner in (table superuser)
    and pg_proc.oid not in (select objid from members where classid = 'pg_proc'::regclass::oid)
  union all
  select 4, pg_catalog.format('%%s %%I.%%I', case typtype when 'd' then 'domain' else 'type' end, nspname, typname)
  from pg_type join schemas on schemas.oid = typnamespace left join pg_class on pg_class.oid = typrelid
  where typowner in (table superuser) and typelem = 0::oid
    and (typtype in ('e', 'd', 'r') or (typtype = 'c' and relkind = 'c'))
    and pg_type.oid not in (select objid from members where classid = 'pg_type'::regclass::oid)
  union all
  select 5, pg_catalog.format('statistics %%I.%%I', nspname, stxname)
  from pg_statistic_ext join schemas on schemas.oid = stxnamespace where stxowner in (table superuser)
  union all
  select 6, pg_catalog.format('large object %%s', oid) from pg_largeobject_metadata where lomowner in (table superuser)
  union all
  select 7, pg_catalog.format('publication %%I', pubname) from pg_publication where pubowner in (table superuser)
)
select pg_catalog.format('alter %%s owner to %%I', object, %(role)s::text) from objects order by turn, object
"""
