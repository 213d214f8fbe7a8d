"""The printed statements for the table of outputs."""

from __future__ import annotations

from saga_spark.output_records import table_ddl


def test_mysql_has_no_create_index_if_not_exists() -> None:
    printed = table_ddl("mysql")
    assert "CREATE INDEX" not in printed
    assert "INDEX saga_output_place (saga, place, state, updated_at)" in printed
