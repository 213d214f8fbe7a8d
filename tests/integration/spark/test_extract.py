"""Tables of a real PostgreSQL as the Parquet files a job reads."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pyarrow.parquet as pq

from spark_steps.extract import Wanted, extract
from tests.servers import DatabaseServer


def test_a_null_is_a_row_also_where_it_is_the_only_column(server: DatabaseServer, tmp_path: Path) -> None:
    url = server.url().replace("+psycopg", "")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table lonely (n int, word text)")
        connection.execute("insert into lonely values (1, ''), (null, null), (3, 'c'), (null, 'd')")
    wanted = [
        Wanted(name, {"table": "lonely", "columns": columns}, (tmp_path / name / "part.parquet").as_uri())
        for name, columns in (("n", ["n"]), ("word", ["word"]), ("both", ["n", "word"]))
    ]
    found = extract(url, wanted, lambda _: None, lambda _: None)
    read = {one.name: pq.read_table(tmp_path / one.name / "part.parquet").to_pydict() for one in wanted}
    numbers, words = [1, None, 3, None], ["", None, "c", "d"]
    assert read == {"n": {"n": numbers}, "word": {"word": words}, "both": {"n": numbers, "word": words}}
    assert {one.rows for one in found.values()} == {4}
