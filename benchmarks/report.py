"""Prints the figures of two ways beside each other, and their ratio."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.measure import Figures

LINE = "{:<34} {:>12} {:>12} {:>9}"


def print_pair(kind: str, theirs: Figures, ours: Figures) -> None:
    """One table for one kind of activity."""
    print()
    print(LINE.format(f"three {kind} steps", "hand-written", "this engine", "ratio"))
    rows = [
        ("latency p50 ms (one at a time)", theirs.latency(0.5), ours.latency(0.5)),
        ("latency p95 ms (one at a time)", theirs.latency(0.95), ours.latency(0.95)),
        ("sagas/s (50 at a time)", theirs.rate, ours.rate),
        ("worker CPU ms per saga", theirs.cpu("worker"), ours.cpu("worker")),
        ("server CPU ms per saga", theirs.cpu("server"), ours.cpu("server")),
        ("history events per saga", float(theirs.events[0]), float(ours.events[0])),
    ]
    for label, left, right in rows:
        print(LINE.format(label, f"{left:.1f}", f"{right:.1f}", f"{right / left:.2f}"), flush=True)


def print_growth(rows: Iterable[tuple[int, float, float]]) -> None:
    """Milliseconds of each step for several lengths."""
    print()
    print(LINE.format("ms for each step (no-op)", "hand-written", "this engine", "ratio"))
    for steps, left, right in rows:
        print(LINE.format(f"{steps} steps", f"{left:.1f}", f"{right:.1f}", f"{right / left:.2f}"), flush=True)
