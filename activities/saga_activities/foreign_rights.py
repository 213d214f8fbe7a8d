"""Roles of PostgreSQL that can run code as the role of a connection: they may create what its SQL uses.

Superusers and the owner of the database are trusted, because they can always do that; so are the members of that owner
and of a role that is named as trusted, and the role that the connection logs in with. A right is reported: in many
databases another role owns the tables, and before PostgreSQL 15 everybody may create objects in `public`. Two states
are refused: a schema of another role that has the name of the worker's role, because `"$user"` of the search_path
already leads there; and a search_path with a schema before `pg_catalog`, because what is in it replaces functions of
PostgreSQL.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.exc import SQLAlchemyError

from sagas.text.shortening import join_names
from sagas.text.sql_names import sql_name

MAX_NAMES = 5
"""Rights that a message names."""

VALID_FOR = 60.0
"""Seconds after which a pool looks again."""

_PATH = """
    SELECT pg_catalog.current_setting('search_path'), current_user::text,
      ARRAY(SELECT n.nspname::text FROM pg_catalog.pg_namespace n),
      (SELECT s.schema FROM pg_catalog.unnest(pg_catalog.current_schemas(true)::text[]) AS s (schema)
       WHERE s.schema NOT LIKE 'pg\\_temp\\_%%' LIMIT 1)
"""

# `holders` have a right, by a grant or as owners; `strangers` are those that should not, with 0 for everybody. A role
# also has the rights of the roles that it may become (SET) or inherits from (USAGE). What pg_catalog has comes first
# in the search_path, unless that says otherwise. `members` leaves out the roles through which the login of the
# connection becomes its role: who takes them away locks the worker out. Of a superuser every role would be one.
_RIGHTS = """
    WITH database AS (
        SELECT d.datname::text AS name, d.datdba AS owner, d.datacl AS acl FROM pg_catalog.pg_database d
        WHERE d.datname = pg_catalog.current_database()
    ), strangers AS (
        SELECT r.oid, r.rolname::text AS role FROM pg_catalog.pg_roles r CROSS JOIN database d
        WHERE NOT r.rolsuper AND r.rolname NOT IN (current_user, session_user, 'pg_database_owner')
          AND NOT EXISTS (
            SELECT FROM pg_catalog.pg_roles t WHERE (t.oid = d.owner OR t.rolname::text = ANY(%(trusted)s::text[]))
            AND pg_catalog.pg_has_role(r.oid, t.oid, 'MEMBER'::text))
        UNION ALL SELECT 0::oid, NULL::text WHERE 'public'::text <> ALL(%(trusted)s::text[])
    ), path AS (
        SELECT n.oid, n.nspname::text AS name, n.nspowner AS owner, n.nspacl AS acl FROM pg_catalog.pg_namespace n
        WHERE n.nspname::text = ANY(%(names)s::text[])
    ), tables AS (
        SELECT n.nspname::text AS schema, c.relname::text AS name, c.relowner AS owner, c.relacl AS acl
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'p', 'v', 'f') AND c.relpersistence <> 't'
          AND pg_catalog.has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE')
    ), granted AS (
        SELECT 'create' AS right, p.name AS schema, NULL::text AS object, a.grantee AS role FROM path p
        CROSS JOIN LATERAL pg_catalog.aclexplode(p.acl) a WHERE a.privilege_type = 'CREATE' AND a.grantee <> p.owner
        UNION SELECT 'owner', p.name, NULL::text, p.owner FROM path p
        UNION SELECT 'trigger', t.schema, t.name, a.grantee FROM tables t
        CROSS JOIN LATERAL pg_catalog.aclexplode(t.acl) a WHERE a.privilege_type = 'TRIGGER' AND a.grantee <> t.owner
        UNION SELECT 'table', t.schema, t.name, t.owner FROM tables t
        UNION SELECT 'schema', d.name, NULL::text, a.grantee FROM database d
        CROSS JOIN LATERAL pg_catalog.aclexplode(d.acl) a WHERE a.privilege_type = 'CREATE' AND %(missing)s::boolean
    ), holders AS (
        SELECT g.right, g.schema, g.object, CASE WHEN r.oid IS NULL THEN g.role ELSE d.owner END AS role
        FROM granted g CROSS JOIN database d
        LEFT JOIN pg_catalog.pg_roles r ON r.oid = g.role AND r.rolname = 'pg_database_owner'
    ), members AS (
        SELECT DISTINCT s.oid AS member, s.role, m.roleid, h.role AS holder
        FROM strangers s JOIN pg_catalog.pg_auth_members m ON m.member = s.oid
        CROSS JOIN (SELECT DISTINCT h.role FROM holders h WHERE h.role <> 0::oid) h
        WHERE s.oid <> h.role
          AND NOT EXISTS (
            SELECT FROM pg_catalog.pg_roles l WHERE l.rolname = session_user AND NOT l.rolsuper
            AND s.oid <> 0::oid AND pg_catalog.pg_has_role(l.oid, s.oid, 'MEMBER'::text))
          AND (m.roleid = h.role OR pg_catalog.pg_has_role(m.roleid, h.role, %(become)s::text))
          AND (pg_catalog.pg_has_role(s.oid, h.role, 'USAGE'::text)
               OR pg_catalog.pg_has_role(s.oid, h.role, %(become)s::text))
    )
    SELECT h.right, h.schema, h.object, s.role, NULL::text AS member_of
    FROM holders h JOIN strangers s ON s.oid = h.role
    UNION SELECT h.right, h.schema, h.object, m.role, g.rolname::text
    FROM holders h JOIN members m ON m.holder = h.role JOIN pg_catalog.pg_roles g ON g.oid = m.roleid
    ORDER BY 2, 3, 4, 5
"""

_NAME = re.compile(r'"((?:[^"]|"")*)"|([^\s,"]+)')


log = logging.getLogger("saga.connections")


class ForeignRights(SQLAlchemyError):
    """Other roles can run code as the role of the connection; ``help`` says what to do about the first right. With
    ``refused`` their objects may be in use already, and no connection is given out.
    """

    def __init__(self, message: str, help: str, *, refused: bool) -> None:
        self.message, self.help, self.refused = message, help, refused
        super().__init__(f"{message}; {help}")


@dataclass(frozen=True, slots=True)
class _Right:
    kind: str
    schema: str
    table: str | None
    role: str | None
    member_of: str | None

    def takes_the_schema_of(self, user: str) -> bool:
        """True for the owner of a schema that the user searches as its own, not for a member of the user's role."""
        return self.kind == "owner" and self.schema == user and self.member_of is None

    def words(self, missing: Sequence[str]) -> str:
        role = self.role or "public"
        if self.member_of is not None:
            role = f"{role} as a member of {self.member_of}"
        match self.kind:
            case "owner":
                return f"{role} owns {self.schema}"
            case "trigger":
                return f"{role} by triggers of {self.schema}.{self.table}"
            case "table":
                return f"{role} owns {self.schema}.{self.table}"
            case "schema":
                return f"{role} by a new schema {missing[0]}"
        return f"{role} in {self.schema}"

    def help(self, user: str) -> str:
        """The advice; trust comes first where the right is usually wanted, and others may work with it."""
        if self.takes_the_schema_of(user):
            return self._remedy(user)
        trust = f"name {sql_name(self.role) if self.role else 'public'} in trusted_roles"
        wanted = self.member_of is not None or self.kind in ("owner", "table")
        return f"{trust}, or {self._remedy(user)}" if wanted else f"{self._remedy(user)}, or {trust}"

    def _remedy(self, user: str) -> str:
        grantee = sql_name(self.role) if self.role else "public"
        if self.member_of is not None:
            return f"revoke {sql_name(self.member_of)} from {grantee}"
        match self.kind:
            case "owner":
                return f"alter schema {sql_name(self.schema)} owner to {sql_name(user)}"
            case "trigger":
                return f"revoke trigger on {self._table} from {grantee}"
            case "table":
                return f"alter table {self._table} owner to {sql_name(user)}"
            case "schema":
                return f"revoke create on database {sql_name(self.schema)} from {grantee}"
        return f"revoke create on schema {sql_name(self.schema)} from {grantee}"

    @property
    def _table(self) -> str:
        return f"{sql_name(self.schema)}.{sql_name(self.table or '')}"


def find_foreign_rights(connection: Any, trusted: Collection[str] = ()) -> ForeignRights | None:
    """Read the rights of other roles, except ``trusted`` ones, over a DBAPI connection, in a transaction of it if it is
    not in autocommit mode.
    """
    cursor = connection.cursor()
    try:
        cursor.execute(_PATH)
        path, user, schemas, first = cursor.fetchone()
        if first != "pg_catalog":
            message = (
                f"the search_path has {first} before pg_catalog, so what is there replaces functions of PostgreSQL"
            )
            help = "remove pg_catalog from the search_path: it then comes first"
            return ForeignRights(message, help, refused=True)
        names = _names(path, user)
        missing = [schema for schema in names if schema not in schemas]
        become = "SET" if connection.info.server_version >= 160_000 else "MEMBER"
        values = {"trusted": [*trusted], "names": names, "missing": bool(missing), "become": become}
        cursor.execute(_RIGHTS, values)
        rights = [_Right(*row) for row in cursor.fetchall()]
    finally:
        cursor.close()
    if not rights:
        return None
    rights.sort(key=lambda right: not right.takes_the_schema_of(user))
    words = join_names([right.words(missing) for right in rights], limit=MAX_NAMES)
    message = f"other roles may create objects that SQL of {user} uses ({words}), so they can run code as {user}"
    return ForeignRights(message, rights[0].help(user), refused=rights[0].takes_the_schema_of(user))


class _RightsCheck:
    """Looks for such rights over the connections of one role to one database, at most once in ``VALID_FOR`` seconds."""

    def __init__(self, name: str, trusted: Collection[str]) -> None:
        self._name = name
        self._trusted = tuple(trusted)
        self._valid_until = float("-inf")
        self._logged = ""

    def __call__(self, connection: Any) -> None:
        if time.monotonic() < self._valid_until:
            return
        rights = find_foreign_rights(connection, self._trusted)
        if rights is not None and rights.refused:
            raise ForeignRights(f"the connection {self._name} is refused: {rights.message}", rights.help, refused=True)
        if rights is not None and str(rights) != self._logged:
            self._logged = str(rights)
            log.warning("connection %s: %s", self._name, self._logged)
        self._valid_until = time.monotonic() + VALID_FOR


def refuse_foreign_rights(engine: Engine, name: str, trusted: Collection[str]) -> None:
    """Let a pool for PostgreSQL look for such rights: it logs them, and raises ForeignRights for those to refuse."""
    check = _RightsCheck(name, trusted)
    event.listen(engine, "checkout", lambda connection, _record, _proxy: check(connection))


def refuse_foreign_session(connection: Any, name: str, trusted: Collection[str]) -> None:
    """Look over a new connection of psycopg that no pool has opened, as :func:`refuse_foreign_rights` does.

    No transaction is left open.
    """
    server = connection.info
    _check_of(name, tuple(trusted), server.host, server.port, server.dbname, server.user)(connection)
    if not connection.autocommit:
        connection.rollback()


@lru_cache(256)
def _check_of(name: str, trusted: tuple[str, ...], *database: object) -> _RightsCheck:
    return _RightsCheck(name, trusted)


def _names(path: str, user: str) -> list[str]:
    """The schemas of a search_path, whether they exist or not."""
    names = [quoted.replace('""', '"') or plain.lower() for quoted, plain in _NAME.findall(path)]
    return [user if name == "$user" else name for name in names]
