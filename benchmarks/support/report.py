"""Prints the figures of two implementations side by side, and their ratio."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.support.measure import Figures, ratio

LINE = "{:<38} {:>12} {:>12} {:>9}"


def print_pair(kind: str, theirs: Figures, ours: Figures) -> None:
    """One table for one kind of activity; ratios of rates and CPU are medians over the rounds."""
    print()
    print(LINE.format(f"three {kind} steps", "hand-written", "this engine", "ratio"))
    for name, quantile in (("p50", 0.5), ("p95", 0.95)):
        left, right = theirs.latency(quantile), ours.latency(quantile)
        _row(f"latency {name} ms (one at a time)", left, right, right / left)
    _row("sagas/s (50 at a time)", theirs.rate, ours.rate, ratio(ours.rates, theirs.rates))
    _row("worker CPU ms per saga", theirs.cpu("worker"), ours.cpu("worker"), ratio(ours.worker_cpu, theirs.worker_cpu))
    _row("server CPU ms per saga", theirs.cpu("server"), ours.cpu("server"), ratio(ours.server_cpu, theirs.server_cpu))
    left, right = theirs.events[0], ours.events[0]
    _row("history events per saga", left, right, right / left)


def print_growth(rows: Iterable[tuple[int, Figures, Figures]]) -> None:
    """The cost of each step for several lengths: milliseconds alone, and CPU of worker and server together."""
    print()
    print(LINE.format("for each of n no-op steps", "hand-written", "this engine", "ratio"))
    for steps, theirs, ours in rows:
        left, right = theirs.latency(0.5) / steps, ours.latency(0.5) / steps
        _row(f"n = {steps}: ms, one saga at a time", left, right, right / left)
        left, right = (sum(figures.cpu(who) for who in ("worker", "server")) / steps for figures in (theirs, ours))
        _row(f"n = {steps}: CPU ms, worker and server", left, right, right / left)


def _row(label: str, left: float, right: float, ratio: float) -> None:
    print(LINE.format(label, f"{left:.1f}", f"{right:.1f}", f"{ratio:.2f}"), flush=True)
