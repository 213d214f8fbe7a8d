"""The queries that find roles of PostgreSQL with rights over what the SQL of a connection uses."""

from __future__ import annotations

SEARCH_PATH = """
    SELECT pg_catalog.current_setting('search_path'), current_user::text,
      ARRAY(SELECT n.nspname::text FROM pg_catalog.pg_namespace n),
      (SELECT s.schema FROM pg_catalog.unnest(pg_catalog.current_schemas(true)::text[]) AS s (schema)
       WHERE s.schema NOT LIKE 'pg\\_temp\\_%%' LIMIT 1)
"""

# `holders` have a right, by a grant or as owners; `strangers` are those that should not, with 0 for everybody. A role
# also has the rights of the roles that it may become (SET) or inherits from (USAGE). What pg_catalog has comes first
# in the search_path, unless that says otherwise. `members` leaves out the roles through which the login of the
# connection becomes its role: who takes them away locks the worker out. Of a superuser every role would be one.
#
# `used` are the relations that the role has a privilege on, their partitions, and what its views read; the owner of
# each can make it run code (a policy, a rule, a trigger, a default). Where the role may change a row (`changed`), they
# are also the tables that a foreign key changes in turn (`cascade`): their triggers run in the session of the role,
# before PostgreSQL 18 as the role if they are deferred, and each of them may set the search_path of the session.
# `types` are those of their columns, and those that a name of the search_path leads to, as in a cast: the owner of one
# can give it a cast or a check. The row type of a table counts there only for the types of its columns: the tables of
# other applications, on which the role has no right, do not count. A multirange belongs to its range. `routines` are
# those that names of the search_path, casts and expressions, triggers, policies, rules and operators of `used` and
# checks of `types` lead to, those of event triggers, and what the catalog shows them to call, such as the functions of
# an aggregate; their owner can replace them. 16384 is the first oid that is not PostgreSQL's own. Rights of one kind in
# one schema are one row, with the first object and their number.
FOREIGN_RIGHTS = """
    WITH RECURSIVE database AS (
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
    ), used AS (
        SELECT c.oid, pg_catalog.has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')
            OR pg_catalog.has_any_column_privilege(c.oid, 'INSERT, UPDATE') AS written,
          pg_catalog.has_table_privilege(c.oid, 'UPDATE, DELETE')
            OR pg_catalog.has_any_column_privilege(c.oid, 'UPDATE') AS changed,
          false AS cascade
        FROM pg_catalog.pg_class c
        WHERE c.relkind IN ('r', 'p', 'v', 'f') AND c.relpersistence <> 't' AND c.oid >= 16384::oid
          AND pg_catalog.has_schema_privilege(c.relnamespace, 'USAGE')
          AND (pg_catalog.has_table_privilege(c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE')
               OR pg_catalog.has_any_column_privilege(c.oid, 'SELECT, INSERT, UPDATE'))
        UNION SELECT below.oid, u.written, u.changed, u.cascade OR below.cascade FROM used u CROSS JOIN LATERAL (
            SELECT i.inhrelid AS oid, false AS cascade FROM pg_catalog.pg_inherits i WHERE i.inhparent = u.oid
            UNION ALL SELECT d.refobjid, false
            FROM pg_catalog.pg_rewrite r JOIN pg_catalog.pg_depend d ON d.objid = r.oid
            WHERE r.ev_class = u.oid AND d.classid = 'pg_catalog.pg_rewrite'::regclass::oid
              AND d.refclassid = 'pg_catalog.pg_class'::regclass::oid
            UNION ALL SELECT k.conrelid, true FROM pg_catalog.pg_constraint k
            WHERE u.changed AND k.confrelid = u.oid
              AND (k.confdeltype IN ('c', 'n', 'd') OR k.confupdtype IN ('c', 'n', 'd'))
        ) below WHERE below.oid >= 16384::oid
    ), tables AS (
        SELECT c.oid, n.nspname::text AS schema, n.nspowner AS schema_owner, c.relname::text AS name,
          c.relowner AS owner, c.relacl AS acl, u.written, u.changed, u.cascade
        FROM used u JOIN pg_catalog.pg_class c ON c.oid = u.oid
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p', 'v', 'f')
    ), types AS (
        SELECT a.atttypid AS oid FROM used u JOIN pg_catalog.pg_attribute a ON a.attrelid = u.oid
        WHERE a.attnum > 0 AND a.atttypid >= 16384::oid
        UNION SELECT t.oid FROM path p JOIN pg_catalog.pg_type t ON t.typnamespace = p.oid
        WHERE t.typelem = 0::oid AND t.oid >= 16384::oid
        UNION SELECT inner_type.oid FROM types x JOIN pg_catalog.pg_type t ON t.oid = x.oid CROSS JOIN LATERAL (
            SELECT t.typelem AS oid UNION ALL SELECT t.typbasetype
            UNION ALL SELECT g.rngsubtype FROM pg_catalog.pg_range g WHERE g.rngtypid = t.oid
            UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0
        ) inner_type WHERE inner_type.oid >= 16384::oid
    ), operators AS (
        SELECT o.oid, p.name AS schema, o.oprname::text AS name, o.oprowner AS owner, o.oprcode::oid AS routine,
          o.oprleft AS left_type, o.oprright AS right_type
        FROM path p JOIN pg_catalog.pg_operator o ON o.oprnamespace = p.oid WHERE o.oid >= 16384::oid
    ), expressions AS (
        SELECT 'pg_catalog.pg_trigger'::regclass::oid AS kind, t.oid FROM used u
        JOIN pg_catalog.pg_trigger t ON t.tgrelid = u.oid
        UNION ALL SELECT 'pg_catalog.pg_attrdef'::regclass::oid, a.oid FROM used u
        JOIN pg_catalog.pg_attrdef a ON a.adrelid = u.oid
        UNION ALL SELECT 'pg_catalog.pg_policy'::regclass::oid, y.oid FROM used u
        JOIN pg_catalog.pg_policy y ON y.polrelid = u.oid
        UNION ALL SELECT 'pg_catalog.pg_rewrite'::regclass::oid, r.oid FROM used u
        JOIN pg_catalog.pg_rewrite r ON r.ev_class = u.oid
        UNION ALL SELECT 'pg_catalog.pg_class'::regclass::oid, i.indexrelid FROM used u
        JOIN pg_catalog.pg_index i ON i.indrelid = u.oid
        UNION ALL SELECT 'pg_catalog.pg_constraint'::regclass::oid, k.oid FROM used u
        JOIN pg_catalog.pg_constraint k ON k.conrelid = u.oid
        UNION ALL SELECT 'pg_catalog.pg_constraint'::regclass::oid, k.oid FROM types t
        JOIN pg_catalog.pg_constraint k ON k.contypid = t.oid
        UNION ALL SELECT 'pg_catalog.pg_type'::regclass::oid, t.oid FROM types t
    ), needed AS (
        SELECT d.refclassid AS kind, d.refobjid AS oid FROM expressions e
        JOIN pg_catalog.pg_depend d ON d.classid = e.kind AND d.objid = e.oid WHERE d.refobjid >= 16384::oid
    ), routines AS (
        SELECT f.oid FROM path p JOIN pg_catalog.pg_proc f ON f.pronamespace = p.oid
        UNION SELECT e.evtfoid FROM pg_catalog.pg_event_trigger e
        UNION SELECT n.oid FROM needed n WHERE n.kind = 'pg_catalog.pg_proc'::regclass::oid
        UNION SELECT o.oprcode::oid FROM needed n JOIN pg_catalog.pg_operator o ON o.oid = n.oid
        WHERE n.kind = 'pg_catalog.pg_operator'::regclass::oid
        UNION SELECT o.routine FROM operators o
        UNION SELECT c.castfunc FROM pg_catalog.pg_cast c WHERE c.oid >= 16384::oid
        UNION SELECT d.refobjid FROM routines r JOIN pg_catalog.pg_depend d ON d.objid = r.oid
        WHERE d.classid = 'pg_catalog.pg_proc'::regclass::oid AND d.refclassid = 'pg_catalog.pg_proc'::regclass::oid
    ), granted AS (
        SELECT 'create' AS right, p.name AS schema, NULL::text AS object, a.grantee AS role FROM path p
        CROSS JOIN LATERAL pg_catalog.aclexplode(p.acl) a WHERE a.privilege_type = 'CREATE' AND a.grantee <> p.owner
        UNION SELECT 'owner', p.name, NULL::text, p.owner FROM path p
        UNION SELECT 'home', t.schema, NULL::text, t.schema_owner FROM tables t
        WHERE t.schema <> ALL(%(names)s::text[]) AND NOT t.cascade
        UNION SELECT 'trigger', t.schema, t.name, a.grantee FROM tables t
        CROSS JOIN LATERAL pg_catalog.aclexplode(t.acl) a
        WHERE t.written AND a.privilege_type = 'TRIGGER' AND a.grantee <> t.owner
        UNION SELECT 'references', t.schema, t.name, a.grantee FROM tables t CROSS JOIN LATERAL (
            SELECT t.acl UNION ALL SELECT b.attacl FROM pg_catalog.pg_attribute b WHERE b.attrelid = t.oid
        ) s (acl) CROSS JOIN LATERAL pg_catalog.aclexplode(s.acl) a
        WHERE t.changed AND a.privilege_type = 'REFERENCES' AND a.grantee <> t.owner
        UNION SELECT 'foreign key', pg_catalog.format('%%I.%%I', t.schema, t.name), k.conname::text, t.owner
        FROM tables t JOIN pg_catalog.pg_constraint k ON k.conrelid = t.oid JOIN used u ON u.oid = k.confrelid
        WHERE t.cascade AND u.changed
          AND (k.confdeltype IN ('c', 'n', 'd') OR k.confupdtype IN ('c', 'n', 'd'))
        UNION SELECT 'table', t.schema, t.name, t.owner FROM tables t WHERE NOT t.cascade
        UNION SELECT 'type', n.nspname::text, pg_catalog.format('%%I.%%I', n.nspname, t.typname), t.typowner
        FROM types x JOIN pg_catalog.pg_type t ON t.oid = x.oid
        JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
        LEFT JOIN pg_catalog.pg_class c ON c.oid = t.typrelid
        WHERE t.typelem = 0::oid AND t.typtype <> 'm' AND (c.oid IS NULL OR c.relkind = 'c')
        UNION SELECT 'operator', o.schema, pg_catalog.format('%%I.%%s (%%s, %%s)', o.schema, o.name,
          CASE WHEN o.left_type = 0::oid THEN 'none' ELSE pg_catalog.format_type(o.left_type, NULL::int) END,
          CASE WHEN o.right_type = 0::oid THEN 'none' ELSE pg_catalog.format_type(o.right_type, NULL::int) END), o.owner
        FROM operators o
        UNION SELECT 'operator class', p.name, pg_catalog.format('%%I.%%I using %%I', p.name, c.opcname, m.amname),
          c.opcowner
        FROM path p JOIN pg_catalog.pg_opclass c ON c.opcnamespace = p.oid
        JOIN pg_catalog.pg_am m ON m.oid = c.opcmethod WHERE c.oid >= 16384::oid
        UNION SELECT 'routine', n.nspname::text, pg_catalog.format('%%I.%%I(%%s)', n.nspname, f.proname,
          pg_catalog.pg_get_function_identity_arguments(f.oid)), f.proowner
        FROM routines r JOIN pg_catalog.pg_proc f ON f.oid = r.oid
        JOIN pg_catalog.pg_roles o ON o.oid = f.proowner JOIN pg_catalog.pg_namespace n ON n.oid = f.pronamespace
        WHERE NOT o.rolsuper AND f.oid >= 16384::oid
        UNION SELECT 'schema', d.name, NULL::text, a.grantee FROM database d
        CROSS JOIN LATERAL pg_catalog.aclexplode(d.acl) a WHERE a.privilege_type = 'CREATE' AND %(missing)s::boolean
    ), holders AS (
        SELECT g.right, g.schema, pg_catalog.min(g.object) AS object, pg_catalog.count(*) AS objects,
          CASE WHEN r.oid IS NULL THEN g.role ELSE d.owner END AS role
        FROM granted g CROSS JOIN database d
        LEFT JOIN pg_catalog.pg_roles r ON r.oid = g.role AND r.rolname = 'pg_database_owner'
        GROUP BY 1, 2, 5
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
    SELECT h.right, h.schema, h.object, h.objects, s.role, NULL::text AS member_of
    FROM holders h JOIN strangers s ON s.oid = h.role
    UNION SELECT h.right, h.schema, h.object, h.objects, m.role, g.rolname::text
    FROM holders h JOIN members m ON m.holder = h.role JOIN pg_catalog.pg_roles g ON g.oid = m.roleid
    ORDER BY 2, 3, 5, 6
"""
