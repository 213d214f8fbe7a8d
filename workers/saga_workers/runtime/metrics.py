"""Helpers that the Prometheus collectors of all processes share."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric


def without_created(registry: CollectorRegistry) -> Iterator[Metric]:
    """The metrics of a registry without the ``_created`` samples that Prometheus' client adds to every counter."""
    for metric in registry.collect():
        shown = Metric(metric.name, metric.documentation, metric.type, metric.unit)
        shown.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
        yield shown
