"""One changing statement for many calls on PostgreSQL: a PL/pgSQL block with a subtransaction for each of them.

A call that breaks a constraint, or changes another number of rows than it may, is rolled back by the server alone, so
nothing is executed twice and no call costs a round trip. PL/pgSQL converts no value: the texts are those that psycopg
would send, and their types those that the server has given to the statement's parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.adapt import PyFormat, Transformer

from saga_activities.parameters.parameter_types import sent_types, types_of
from sagas.sql_text.parsed import ParsedSql
from sagas.text.exact_json import encode_json

_TYPES = {
    16: "bool", 17: "bytea", 20: "int8", 21: "int2", 23: "int4", 25: "text", 114: "json", 700: "float4", 701: "float8",
    1042: "bpchar", 1043: "varchar", 1082: "date", 1083: "time", 1114: "timestamp", 1184: "timestamptz",
    1186: "interval", 1266: "timetz", 1700: "numeric", 2950: "uuid", 3802: "jsonb",
}  # fmt: skip
"""Types that a text is cast to by the function that reads a parameter, by their object identifiers."""

_ITEMS, _ROWS = "saga.items", "saga.rows"
_OTHER_COUNT = "SAGA1"
_WHOLE_TRANSACTION = ("40", "53", "55", "57", "58", "XX")
"""Classes of SQLSTATE that no subtransaction can contain: conflicts, locks, resources, operators, the server itself."""

_MAX_VARIANTS = 8
"""Combinations of types in one block: an integer is sent as the smallest type that holds it."""

_BLOCK = """DO {quote}
#variable_conflict use_column
DECLARE
  saga_item_ record; saga_count_ bigint; saga_rows_ text[] := '{{}}';
BEGIN
  FOR saga_item_ IN SELECT (r->>0)::int4 AS variant, (r->>1)::int8 AS expected{columns}
    FROM pg_catalog.json_array_elements(pg_catalog.current_setting('{items}')::json) AS r LOOP
{settings}
    saga_count_ := NULL;
    BEGIN
      CASE saga_item_.variant{branches}
      END CASE;
      IF saga_count_ <> saga_item_.expected THEN RAISE SQLSTATE '{other_count}'; END IF;
      saga_rows_ := pg_catalog.array_append(saga_rows_, saga_count_::text);
    EXCEPTION WHEN OTHERS THEN
      IF pg_catalog.left(SQLSTATE, 2) IN ({whole}) THEN RAISE; END IF;
      IF SQLSTATE <> '{other_count}' THEN saga_count_ := NULL; END IF;
      saga_rows_ := pg_catalog.array_append(saga_rows_, COALESCE('!' || saga_count_::text, ''));
    END;
  END LOOP;
  PERFORM pg_catalog.set_config('{rows}', pg_catalog.array_to_string(saga_rows_, ','), true);
END {quote}"""
_BRANCH = """
      WHEN {variant} THEN
{statement}
        ;
        GET DIAGNOSTICS saga_count_ = ROW_COUNT;"""


@dataclass(frozen=True, slots=True)
class BlockCall:
    """The parameters of one call, and the number of rows that it must change; None: any."""

    parameters: Mapping[str, Any]
    expected: int | None


@dataclass(frozen=True, slots=True)
class BlockEnd:
    """How a call ended. ``rows``: it has changed, or would have; None: an error. ``kept``: its changes stand."""

    rows: int | None
    kept: bool


async def run_block(tx: Any, statement: ParsedSql, calls: Sequence[BlockCall]) -> list[BlockEnd] | None:
    """Run the statement once for each call, in order, in the transaction of the chunk ``tx``.

    None if nothing was run, because a value or a type has no form here. Raises psycopg's errors: then nothing is known
    about any call, and the transaction is lost.
    """
    transformer = Transformer(tx.raw)
    variants: dict[tuple[int, ...], int] = {}
    of_calls = [
        variants.setdefault(sent_types(transformer, statement, call.parameters), len(variants)) for call in calls
    ]
    if len(variants) > _MAX_VARIANTS:
        return None
    types: list[tuple[str, ...]] = []
    for variant in range(len(variants)):
        values = calls[of_calls.index(variant)].parameters
        async with tx.raw.lock:
            resolved = await tx.raw.wait(types_of(tx.raw, statement, values))
        names = tuple(_TYPES.get(resolved[name], "") for name in statement.parameters)
        if "" in names:
            return None
        types.append(names)
    items = encode_json(list(_rows(transformer, statement, calls, of_calls))).decode()
    counts = await tx.run_block(_block(statement, tuple(types), tx.own_settings), (_ITEMS, items), _ROWS)
    return [_end(text) for text in counts.split(",")]


def _end(text: str) -> BlockEnd:
    count = text.removeprefix("!")
    return BlockEnd(int(count) if count else None, kept=text == count != "")


def _rows(
    transformer: Any, statement: ParsedSql, calls: Sequence[BlockCall], variants: Sequence[int]
) -> Iterator[list[int | str | None]]:
    """The variant of each call, the rows that it must change, and its parameters as psycopg writes them as text."""
    for call, variant in zip(calls, variants, strict=True):
        row: list[int | str | None] = [variant, call.expected]
        for name in statement.parameters:
            value = call.parameters[name]
            text = None if value is None else transformer.get_dumper(value, PyFormat.TEXT).dump(value)
            row.append(None if text is None else bytes(text).decode())
        yield row


def _block(statement: ParsedSql, types: tuple[tuple[str, ...], ...], settings: Sequence[str]) -> str:
    """The block. ``settings``: the statements before each call, so that it does not see what an earlier one has set."""
    columns = "".join(
        f",\n      CASE WHEN (r->>0)::int4 = {variant} THEN (r->>{at + 2})::pg_catalog.{type} END AS p{variant}_{at}"
        for variant, names in enumerate(types)
        for at, type in enumerate(names)
    )
    texts = [_statement(statement, variant) for variant in range(len(types))]
    return _BLOCK.format(
        quote=_quote(texts[0]),
        settings="\n".join(f"    {each.replace('SELECT', 'PERFORM', 1)};" for each in settings),
        columns=columns,
        items=_ITEMS,
        rows=_ROWS,
        branches="".join(_BRANCH.format(variant=variant, statement=text) for variant, text in enumerate(texts)),
        other_count=_OTHER_COUNT,
        whole=", ".join(f"'{state}'" for state in _WHOLE_TRANSACTION),
    )


def _statement(statement: ParsedSql, variant: int) -> str:
    places = {name: f"saga_item_.p{variant}_{at}" for at, name in enumerate(statement.parameters)}
    return "".join(piece if at % 2 == 0 else places[piece] for at, piece in enumerate(statement.pieces()))


def _quote(text: str) -> str:
    """A dollar quote that the text does not have."""
    number = 0
    while f"$saga{number}$" in text:
        number += 1
    return f"$saga{number}$"
