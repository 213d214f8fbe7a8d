"""Wrong `defaults`: values that contradict each other, and values that no step takes."""

from __future__ import annotations

from tests.unit.engine.definition.mistake import Mistake

PIVOT = "shop.book, pivot: true"
UNDONE = "shop.tell, compensate: shop.tell"
TENTATIVE = f"{UNDONE}, confirm: shop.tell"
WAITING = "wait, with: {signal: paid}"

DEFAULT_MISTAKES = [
    Mistake(
        code,
        f"{about} of `defaults`",
        f"saga: s\n{top}defaults: {{{defaults}}}\nsteps:\n  - {{id: a, uses: {step}}}\n",
    )
    for code, about, defaults, step, top in (
        ("SAGA210", "attempts of confirms", "confirm: {retry: {⟦max_attempts: 5}}", TENTATIVE, ""),
        ("SAGA210", "time of confirms", "confirm: {retry: {⟦give_up_after: 1h}}", TENTATIVE, ""),
        ("SAGA106", "intervals", "retry: {initial_interval: 5m, max_interval: ⟦1m}", PIVOT, ""),
        ("SAGA106", "intervals of undos", "compensate: {retry: {max_interval: ⟦500ms}}", UNDONE, ""),
        ("SAGA231", "one attempt", "retry: {max_attempts: ⟦1}", PIVOT, ""),
        ("SAGA232", "too little time", "retry: {give_up_after: ⟦40s}", PIVOT, ""),
        ("SAGA230", "a short timeout", "timeout: ⟦1s", PIVOT, ""),
        ("SAGA118", "heartbeat and no activity", "⟦heartbeat: 5s", WAITING, ""),
        ("SAGA118", "retry and no activity", "⟦retry: {max_attempts: 5}", WAITING, ""),
        ("SAGA118", "the usual timeout and no activity", "⟦timeout: 30s", WAITING, ""),
        ("SAGA118", "a timeout that every step has", "⟦timeout: 1m", f"{PIVOT}, timeout: 2m", ""),
        ("SAGA118", "on_failure for a pivot alone", "⟦on_failure: continue", PIVOT, ""),
        ("SAGA118", "connection and no SQL", "⟦connection: shop", PIVOT, ""),
        ("SAGA118", "task queue and no activity", "⟦task_queue: slow", WAITING, ""),
        ("SAGA118", "timeout of undos that nobody has", "compensate: {⟦timeout: 1m}", PIVOT, ""),
        ("SAGA118", "retry of undos that nobody has", "compensate: {⟦retry: {max_attempts: 5}}", PIVOT, ""),
        ("SAGA118", "confirms that nobody has", "confirm: {⟦timeout: 1m}", UNDONE, ""),
        (
            "SAGA118",
            "attempts that are without limit",
            "retry: {⟦max_attempts: 5, initial_interval: 5s}",
            "shop.tell",
            "recovery: forward\n",
        ),
    )
]
