"""Types of PostgreSQL that users define: their name is not an identity, because a migration changes what it means.

The text of a composite value has no names of attributes, the label of an enum may be that of another member, and a
domain or a range may be created again over another type. So images are stored with the parts of such types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.sql_text.row_changes import NotImageable

TypeParts = Mapping[str, Mapping[str, Any]]
"""The user-defined types in a type, itself included: the attributes, labels, base or subtype of each.

An attribute has its name, its type, and the number that no other one of the type ever gets.
"""


def type_name(oid: str, modifier: str) -> str:
    """An expression of the name of a type, which does not depend on the search path of the session."""
    return f"""(SELECT CASE WHEN y.typnamespace = 'pg_catalog'::regnamespace::oid
          THEN pg_catalog.format_type(y.oid, {modifier})
        ELSE pg_catalog.quote_ident(yn.nspname) || '.' || pg_catalog.quote_ident(y.typname)
          || coalesce(substring(pg_catalog.format_type(y.oid, {modifier}) from '[(].*[)]$'), '') END
        FROM pg_type y JOIN pg_namespace yn ON yn.oid = y.typnamespace WHERE y.oid = {oid})"""


PARTS_OF_TYPE = f"""(WITH RECURSIVE part(oid) AS (
        SELECT t.oid UNION SELECT x.oid FROM part JOIN pg_type p ON p.oid = part.oid, LATERAL (
          SELECT p.typbasetype AS oid WHERE p.typtype = 'd' UNION ALL SELECT p.typelem WHERE p.typelem <> 0::oid
          UNION ALL SELECT e.atttypid FROM pg_attribute e
            WHERE e.attrelid = p.typrelid AND e.attnum > 0 AND NOT e.attisdropped
          UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE p.oid IN (r.rngtypid, r.rngmultitypid)
          UNION ALL SELECT r.rngtypid FROM pg_range r WHERE p.oid = r.rngmultitypid) x)
      SELECT pg_catalog.json_object_agg({type_name("p.oid", "NULL")}, CASE p.typtype
        WHEN 'c' THEN pg_catalog.json_build_object('attributes', (
          SELECT pg_catalog.json_agg(pg_catalog.json_build_array(pg_catalog.quote_ident(e.attname),
            {type_name("e.atttypid", "e.atttypmod")}, e.attnum)
            ORDER BY e.attnum)
          FROM pg_attribute e WHERE e.attrelid = p.typrelid AND e.attnum > 0 AND NOT e.attisdropped))
        WHEN 'e' THEN pg_catalog.json_build_object('labels', (
          SELECT pg_catalog.json_object_agg(e.enumlabel, e.oid::text) FROM pg_enum e WHERE e.enumtypid = p.oid))
        WHEN 'd' THEN pg_catalog.json_build_object('base', pg_catalog.json_build_array({
    type_name("p.typbasetype", "p.typtypmod")
}))
        ELSE (SELECT pg_catalog.json_build_object('subtype', pg_catalog.json_build_array({
    type_name("r.rngsubtype", "NULL")
} || coalesce(
            (SELECT ' collate ' || pg_catalog.quote_ident(ln.nspname) || '.' || pg_catalog.quote_ident(l.collname)
              FROM pg_collation l JOIN pg_namespace ln ON ln.oid = l.collnamespace WHERE l.oid = r.rngcollation), '')))
          FROM pg_range r WHERE r.rngtypid = p.oid) END)
      FROM part JOIN pg_type p ON p.oid = part.oid
      WHERE p.typtype IN ('c', 'e', 'd', 'r') AND p.typnamespace <> 'pg_catalog'::regnamespace::oid)"""
"""The :data:`TypeParts` of the type ``t``; NULL: there are none."""


PRESENT_ATTRIBUTES = (
    "(SELECT pg_catalog.string_agg(attnum::text || ' ' || pg_catalog.quote_ident(attname), ', ' ORDER BY attnum)"
    " FROM pg_attribute WHERE attrelid = {}::regclass AND attnum > 0 AND NOT attisdropped)"
)
"""An expression of the numbers and names of the attributes of the composite type with that name."""


def attributes_of(parts: TypeParts) -> dict[str, list[str]]:
    """For each composite type, its attributes as `"<number> <name>"`, as :data:`PRESENT_ATTRIBUTES` reads them."""
    return {
        name: [f"{number} {attribute}" for attribute, _, number in definition["attributes"] or ()]
        for name, definition in parts.items()
        if "attributes" in definition
    }


def check_parts(before: TypeParts, now: TypeParts) -> None:
    """Raise :class:`NotImageable` if a text of a user's type may denote another value ``now`` than ``before``.

    An enum may have got more labels, and a type may have been created again with the same labels or attributes.
    """
    for name, definition in before.items():
        present = now.get(name, definition)
        if "labels" in definition and "labels" in present:
            _check_labels(name, definition["labels"] or {}, present["labels"] or {})
        elif present != definition:
            kind, was = _shown(definition)
            _, is_now = _shown(present)
            if was == is_now:
                raise NotImageable(
                    f"attributes of {name} {was} were dropped or renamed, and others have their names now"
                )
            raise NotImageable(f"{kind} of {name} was {was} when the step ran, and is {is_now} now")
    for name in before.keys() ^ now.keys():
        raise NotImageable(f"the type {name} was {'' if name in before else 'no '}part of it when the step ran")


def _check_labels(name: str, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    present = set(now.values())
    for label, number in before.items():
        if label in now and now[label] != number and number in present:
            raise NotImageable(f"the label {label!r} of {name} was that of another member when the step ran")


def _shown(definition: Mapping[str, Any]) -> tuple[str, str]:
    ((kind, parts),) = definition.items()
    words = {"attributes": "the list of the attributes", "base": "the type", "subtype": "the subtype"}
    if kind == "attributes":
        return words[kind], f"({', '.join(f'{attribute} {type}' for attribute, type, _ in parts or ())})"
    return words.get(kind, "the kind"), ", ".join(parts)
