"""The rows of a staged file as records of a topic: always the same ids for the same file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pyarrow import parquet as pq

from saga_activities.guard.codec import UnusableResult, to_plain
from saga_activities.kafka import wire
from saga_spark.keys import Target
from saga_spark.sinks.files import resolve
from saga_spark.sinks.sink import Publication

_ROWS = 5_000


class UnusableRow(Exception):
    """A row that cannot be a record. The text says which and why."""


def source_of(prefix: str, publication: Publication) -> str:
    """The CloudEvents source of a publication's events."""
    return f"/{prefix}/spark/{publication.mark.target.key}"


def event_ids(publication: Publication, number: int) -> Iterator[str]:
    """The ids of the records of file ``number`` of the manifest."""
    for row in range(publication.manifest.files[number].rows):
        yield _event_id(publication.mark.target, number, row)


def records(publication: Publication, number: int, *, prefix: str, time: float) -> Iterator[wire.Record]:
    """The records of file ``number`` (from 0) of the manifest. Raises UnusableRow."""
    output, target = publication.output, publication.mark.target
    system, path = resolve(publication.manifest.files[number].uri)
    source, row_number = source_of(prefix, publication), 0
    with system.open_input_file(path) as stream:
        for batch in pq.ParquetFile(stream).iter_batches(_ROWS):
            for row in batch.to_pylist(maps_as_pydicts="strict"):
                try:
                    value, key = _value(row, output.value), _key(row, output.key)
                except (UnusableResult, UnicodeEncodeError, ValueError) as error:
                    raise UnusableRow(f"row {row_number} of file {number} is no event: {error}") from error
                yield wire.encode(
                    value,
                    id=_event_id(target, number, row_number),
                    type=output.place,
                    source=source,
                    time=time,
                    key=key,
                    saga_id=target.saga_id,
                    step=target.step,
                )
                row_number += 1


def _event_id(target: Target, number: int, row: int) -> str:
    return f"{target.name}-{number}-{row}"


def _value(row: Mapping[str, Any], column: str | None) -> str:
    """JSON: of the whole row, or what the column holds; a text there is JSON already."""
    found = row if column is None else row[column]
    if column is not None and isinstance(found, str):
        json.loads(found)
        text = found
    else:
        text = json.dumps(to_plain(found), ensure_ascii=False, separators=(",", ":"))
    text.encode()
    return text


def _key(row: Mapping[str, Any], columns: tuple[str, ...]) -> str | None:
    if not columns:
        return None
    plain = to_plain(row[columns[0]])
    text = plain if plain is None or isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
    if text is not None:
        text.encode()
    return text
