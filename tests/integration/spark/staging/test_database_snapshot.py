"""Tables of a real PostgreSQL as the Parquet files a job reads."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pyarrow.parquet as pq
import pytest

from saga_spark.inputs.postgresql_input import DatabaseInput, extract_database_inputs
from saga_spark.job_errors import UnreadableInput
from sagas.errors import UsageError
from tests.helpers.database_servers import DatabaseServer


def test_a_null_is_a_row_also_where_it_is_the_only_column(server: DatabaseServer, tmp_path: Path) -> None:
    url = server.url().replace("+psycopg", "")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table lonely (n int, word text)")
        connection.execute("insert into lonely values (1, ''), (null, null), (3, 'c'), (null, 'd')")
    wanted = [
        DatabaseInput(name, {"table": "lonely", "columns": columns}, (tmp_path / name / "part.parquet").as_uri())
        for name, columns in (("n", ["n"]), ("word", ["word"]), ("both", ["n", "word"]))
    ]
    extracts = extract_database_inputs(url, wanted, lambda _: None, lambda _: None, name="shop")
    read = {input.name: pq.read_table(tmp_path / input.name / "part.parquet").to_pydict() for input in wanted}
    numbers, words = [1, None, 3, None], ["", None, "c", "d"]
    assert read == {"n": {"n": numbers}, "word": {"word": words}, "both": {"n": numbers, "word": words}}
    assert {extract.rows for extract in extracts.values()} == {4}


def test_a_value_in_the_sql_of_an_input_cannot_inject_a_statement(server: DatabaseServer, tmp_path: Path) -> None:
    """People put values of the saga's input into `where`; the transaction that only reads must not be left."""
    url = server.url().replace("+psycopg", "")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table kept (n int)")
    where = "true)) as input; commit; drop table kept; select ((1"
    wanted = [DatabaseInput("n", {"table": "kept", "where": where}, (tmp_path / "part.parquet").as_uri())]
    with pytest.raises(UnreadableInput, match="several statements in one string are refused"):
        extract_database_inputs(url, wanted, lambda _: None, lambda _: None, name="shop")
    with psycopg.connect(url) as connection:
        assert connection.execute("select to_regclass('kept') is not null").fetchone() == (True,)


@pytest.mark.parametrize(
    "url",
    ["postgresql://ann:geheim@[half/shop", "postgresql://ann:geheim@here/shop?nothing=1", "mysql://ann:geheim@here/x"],
)
def test_an_invalid_url_is_reported_without_its_password(url: str, tmp_path: Path) -> None:
    wanted = [DatabaseInput("n", {"table": "kept"}, (tmp_path / "part.parquet").as_uri())]
    with pytest.raises(UsageError) as reported:
        extract_database_inputs(url, wanted, lambda _: None, lambda _: None, name="shop")
    assert "geheim" not in str(reported.value)
