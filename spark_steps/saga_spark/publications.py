"""From a row of the ledger to what its sink is told."""

from __future__ import annotations

from saga_spark.job import Output
from saga_spark.keys import Mark
from saga_spark.ledger import OutputRow
from saga_spark.settings import SparkSettings
from saga_spark.sinks.registry import sink_for
from saga_spark.sinks.sink import Publication


def output_of(row: OutputRow) -> Output:
    """The output as the step wrote it."""
    return Output.parse(row.target.output, row.spec)


def publication_of(row: OutputRow) -> Publication:
    """What was staged for the row, with its mark. The row must have a manifest."""
    assert row.manifest is not None
    return Publication(output_of(row), row.manifest, Mark(row.target, row.manifest.epoch, row.manifest.sha, row.saga))


def clean_sink(row: OutputRow, settings: SparkSettings) -> None:
    """Remove what the sink keeps beside the visible data for a row that is not and will not be visible. Blocks."""
    if row.manifest is not None:
        publication = publication_of(row)
        sink_for(publication.output.kind, settings).clean(publication)
