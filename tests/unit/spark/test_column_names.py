"""Names of columns that no sink, or one of them, can hold."""

from __future__ import annotations

from typing import Any

import pytest

from saga_spark.sinks.column_names import column_name_problems


def schema(*names: str, **nested: Any) -> dict[str, Any]:
    fields = [{"name": name, "type": "long"} for name in names]
    return {"type": "struct", "fields": [*fields, *({"name": name, "type": kind} for name, kind in nested.items())]}


@pytest.mark.parametrize("kind", ["parquet", "iceberg", "postgresql", "topic"])
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (schema("id", "ID"), "the columns id and ID have one name for readers that ignore case; rename one"),
        (schema("id", ""), "the 2. column has an empty name; give it an alias"),
        (
            schema("id", s={"type": "array", "elementType": schema("a", "A")}),
            "the columns s.a and s.A have one name for readers that ignore case; rename one",
        ),
        (schema("a\0"), "the column 'a\\x00' has a NUL character in its name; rename it"),
    ],
)
def test_names_that_no_reader_can_tell_apart(kind: str, columns: dict[str, Any], message: str) -> None:
    assert column_name_problems(kind, columns) == [message]


def test_limits_belong_to_a_sink() -> None:
    long = schema("x" * 64, "ctid", "_file")
    assert [len(column_name_problems(kind, long)) for kind in ("parquet", "topic", "iceberg", "postgresql")] == [
        0,
        0,
        1,
        2,
    ]
