"""Random books have the findings of each class that an independent form of the same rules, in Spark, found in them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from saga_spark.reconcile.comparison_database import open_comparison
from saga_spark.reconcile.saga_reconciliation import find_mismatches
from tests.unit.spark.random_books import HORIZON, write_books

FOUND_IN_SPARK = {
    0: 305,
    1: 254,
}
"""Seed of the books → findings."""

CLASSES_FOUND_IN_SPARK = {
    "effect_without_saga": 122,
    "saga_without_effect": 109,
    "open_effects": 67,
    "reservation_unowned": 65,
    "effect_not_undone": 60,
    "amounts_differ": 38,
    "event_without_effect": 35,
    "event_published_twice": 29,
    "effect_applied_twice": 15,
    "event_unclaimed": 14,
    "event_missing": 3,
    "event_held": 2,
}
"""In all books together."""


def test_random_books_have_the_findings_of_spark(tmp_path: Path) -> None:
    classes: Counter[str] = Counter()
    for seed, count in FOUND_IN_SPARK.items():
        written = write_books(tmp_path / str(seed), seed, 20)
        with open_comparison(written.folder, written.since, HORIZON, lambda connection: None) as database:
            find_mismatches(database, written.effects, written.topics)
            findings = list(database.findings(1_000))
            assert database.counts() == Counter(finding.kind for finding in findings)
        assert len(findings) == count
        classes.update(finding.kind for finding in findings)
    assert classes == CLASSES_FOUND_IN_SPARK
