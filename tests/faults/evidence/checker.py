"""The invariants, checked against external evidence only. Pure, so that the checker itself can be tested.

Each rule returns one message per violation. The names are those of the fault matrix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tests.faults.evidence.evidence import Evidence

LIMIT = 75.0
"""Seconds after the last fault by which every saga is over or parked. Temporal alone needs up to 10 of them to notice
that a workflow task went to a worker that is gone; the rest is for a machine that is busy with other things. What
this rule is after is a saga that never ends."""

SUM = 100
START = MappingProxyType({"customer": 100, "transit": 0, "fees": 0, "merchant": 0, "carrier": 0, "marketing": 0})
HOLD = "(hold)"
MOVES: Mapping[str, Mapping[str, int]] = {
    "debit": {"customer": -30, "transit": 30},
    "hold": {"customer": -10, HOLD: 10},
    "order": {"customer": -1, "fees": 1},
    "capture": {"transit": -30, HOLD: -10, "merchant": 40},
    "ship": {"merchant": -2, "carrier": 2},
    "thank": {"merchant": -3, "marketing": 3},
}
"""What the `do` of each step moves; its `undo` moves it back."""


@dataclass(frozen=True)
class Shape:
    """The graph of a workload. ``above`` maps each step to all its ancestors; ``nested`` are steps of a nested saga."""

    above: Mapping[str, frozenset[str]]
    pivot: str = "capture"
    nested: frozenset[str] = frozenset()

    @property
    def after_pivot(self) -> frozenset[str]:
        return frozenset(step for step, above in self.above.items() if self.pivot in above)


def line(*steps: str, nested: frozenset[str] = frozenset()) -> Shape:
    """Steps one after the other."""
    return Shape({step: frozenset(steps[:at]) for at, step in enumerate(steps)}, nested=nested)


TRANSFER = line("debit", "hold", "order", "capture", "ship", "thank")


@dataclass(frozen=True)
class Expected:
    """How a cell must end. ``effects`` are the steps whose effect stays (None: implied by the state);
    ``says`` is part of the error message shown to the operator."""

    state: str
    reason: str | None = None
    step: str | None = None
    parked: str | None = None
    undone: tuple[str, ...] | None = None
    effects: frozenset[str] | None = None
    decisions: tuple[str, ...] = ()
    statuses: tuple[str, ...] = ()
    says: str | None = None
    limit: float = LIMIT


Rule = Callable[[Evidence, Expected, Shape], Iterator[str]]
_STATUS = {
    "COMPLETED": ("COMPLETED",),
    "COMPENSATED": ("FAILED",),
    "PARKED": ("RUNNING",),
    "TERMINATED": ("TERMINATED",),
    "RESIDUE": ("FAILED",),
}


def check(evidence: Evidence, expected: Expected, shape: Shape = TRANSFER) -> list[str]:
    """Every violation, as ``I3: …``; an empty list is a pass."""
    return [f"{name}: {sentence}" for name, rule in RULES.items() for sentence in rule(evidence, expected, shape)]


def _counts(evidence: Evidence) -> Counter[tuple[str, str]]:
    return Counter((effect.step, effect.op) for effect in evidence.journal)


Operation = tuple[str, str, int]
"""A step, its op and its generation: a step that runs again after a savepoint does so as the next one."""


def _operations(evidence: Evidence) -> Counter[Operation]:
    return Counter((effect.step, effect.op, effect.generation) for effect in evidence.journal)


def _left(evidence: Evidence) -> list[str]:
    """The steps whose effect is there and not undone, once for each generation."""
    counts = _operations(evidence)
    return [step for step, op, run in counts if op == "do" and not counts[(step, "undo", run)]]


def conservation(evidence: Evidence, _: Expected, __: Shape) -> Iterator[str]:
    """I1: the total amount of money is constant, also whenever it was sampled during the run."""
    now = sum(evidence.balances.values()) + evidence.holds
    for total in {now, *evidence.totals} - {SUM}:
        yield f"the bank holds {total}, not {SUM}"


def outcome(evidence: Evidence, expected: Expected, shape: Shape) -> Iterator[str]:
    """I2: everything once, or nothing in sum, or parked with a reason; and it is the outcome that must come."""
    state = evidence.story["state"]
    if state != expected.state:
        yield f"the saga is {state}, not {expected.state}"
    remaining = set(_left(evidence))
    wanted = expected.effects
    if wanted is None:
        wanted = frozenset(shape.above) if expected.state == "COMPLETED" else frozenset()
    if remaining != wanted:
        yield f"the effects of {sorted(remaining)} are there, not those of {sorted(wanted)}"
    undone = tuple(effect.step for effect in evidence.journal if effect.op == "undo")
    if state == "COMPLETED" and undone and expected.undone is None:
        yield f"a completed saga has undone {undone}"
    if expected.undone is not None and undone != expected.undone:
        yield f"{undone} were undone, not {expected.undone}"
    if state == "PARKED" and not all(row["why"] and row["step"] for row in evidence.story["parked"]):
        yield "it is parked without a reason"


def effects_once(evidence: Evidence, _: Expected, __: Shape) -> Iterator[str]:
    """I3: each effect at most once, undone at most once, and never undone without having been there."""
    counts = _operations(evidence)
    for (step, op, run), count in counts.items():
        if count > 1:
            yield f"{op} {step} took effect {count} times"
        if op == "undo" and count > counts[(step, "do", run)]:
            yield f"{step} was undone {count} times and done {counts[(step, 'do', run)]} times"
    for step, count in Counter(_left(evidence)).items():
        if count > 1:
            yield f"{count} generations of {step} are there"


def no_zombie(evidence: Evidence, _: Expected, __: Shape) -> Iterator[str]:
    """I4: nothing took effect after its undo or its seal."""
    times = {(effect.step, effect.op, effect.generation): effect.at for effect in evidence.journal}
    for (step, op, run), at in times.items():
        if op == "do" and at > times.get((step, "undo", run), at):
            yield f"{step} took effect after it was undone"
    for row in evidence.guard:
        if row.op == "do" and row.reason == "undo" and (row.step, "do", row.generation) in times:
            yield f"{row.step} is sealed, and took effect all the same"


def one_story(evidence: Evidence, expected: Expected, shape: Shape) -> Iterator[str]:
    """I8: guard rows, history, business tables and the saga's own story say the same."""
    yield from _tables(evidence)
    yield from _guard_rows(evidence)
    yield from _history(evidence, shape)
    yield from _story(evidence, expected, shape)


def _tables(evidence: Evidence) -> Iterator[str]:
    balances = Counter({**START, HOLD: 0})
    for effect in evidence.journal:
        sign = 1 if effect.op == "do" else -1
        for account, change in MOVES[effect.step].items():
            balances[account] += sign * change
    stored = {**evidence.balances, HOLD: evidence.holds}
    if stored != dict(balances):
        yield f"the accounts say {stored}, the journal says {dict(balances)}"
    counts = _counts(evidence)
    order = None
    if counts[("order", "do")]:
        order = "cancelled" if "order" not in _left(evidence) else "shipped" if counts[("ship", "do")] else "open"
    if evidence.order != order:
        yield f"the order is {evidence.order}, the journal says {order}"


def _guard_rows(evidence: Evidence) -> Iterator[str]:
    counts = _operations(evidence)
    done = {(row.step, row.generation) for row in evidence.guard if row.op == "do" and row.reason == "do"}
    undone = {(row.step, row.generation) for row in evidence.guard if row.op == "undo"}
    for step, run in sorted(done | undone | {(step, run) for step, _, run in counts}):
        if step not in MOVES:
            continue
        if ((step, run) in done) != bool(counts[(step, "do", run)]):
            yield f"guard and journal disagree whether {step} was done"
        if ((step, run) in undone & done) != bool(counts[(step, "undo", run)]):
            yield f"guard and journal disagree whether {step} was undone"


def _history(evidence: Evidence, shape: Shape) -> Iterator[str]:
    counts = _counts(evidence)
    ended = Counter(
        activity.id.removesuffix(".1")
        for activity in evidence.activities
        if activity.end == "done" and not activity.id.endswith("seal")
    )
    for id, count in ended.items():
        step, _, op = id.partition("~")
        if step not in shape.above or step in shape.nested:
            continue
        if count > max(counts[(step, op or "do")], 1):
            yield f"the history has {count} ends of {id}"
        if not op and not counts[(step, "do")]:
            yield f"the history says that {step} is done, and there is no effect"


def _story(evidence: Evidence, expected: Expected, shape: Shape) -> Iterator[str]:
    statuses = expected.statuses or _STATUS[expected.state]
    if evidence.status not in statuses:
        yield f"Temporal says {evidence.status}, not {' or '.join(statuses)}"
    if evidence.story["state"] == "TERMINATED":
        return  # it could not record its end, so its view is as old as its last workflow task
    counts = _operations(evidence)
    for row in evidence.story["steps"]:
        step, state, run = row["id"], row["state"], row["generation"]
        if step not in shape.above:
            continue
        done, undone = bool(counts[(step, "do", run)]), bool(counts[(step, "undo", run)])
        says = {"DONE": (True, False), "CONFIRMED": (True, False), "COMPENSATED": (True, True)}.get(state)
        if state in ("PENDING", "SKIPPED", "REJECTED", "FAILED", "NOTHING_TO_UNDO"):
            says = (False, False)
        if says is not None and says != (done, undone):
            yield f"the story says that {step} is {state}; done {done}, undone {undone}"


def reverse_order(evidence: Evidence, _: Expected, shape: Shape) -> Iterator[str]:
    """I9: a step is undone before the steps it needed."""
    done = {(effect.step, effect.generation) for effect in evidence.journal if effect.op == "do"}
    undone = {(effect.step, effect.generation): effect.at for effect in evidence.journal if effect.op == "undo"}
    for (step, run), at in undone.items():
        for earlier in shape.above[step]:
            needed = max(
                (generation for name, generation in done if name == earlier and generation <= run), default=run
            )
            if undone.get((earlier, needed), at) < at:
                yield f"{earlier} was undone before {step}, which needed it"


def no_way_back(evidence: Evidence, _: Expected, shape: Shape) -> Iterator[str]:
    """I10: past the pivot nothing is undone; before it nothing that follows it begins."""
    done = {effect.step: effect.at for effect in evidence.journal if effect.op == "do"}
    pivot = done.get(shape.pivot)
    undone = {
        effect.step for effect in evidence.journal if effect.op == "undo" and pivot is not None and effect.at > pivot
    }
    if undone:
        yield f"{sorted(undone)} were undone past the pivot"
    for step in shape.after_pivot & done.keys():
        if pivot is None or done[step] < pivot:
            yield f"{step} took effect before the pivot"


def reason_recorded(evidence: Evidence, expected: Expected, _: Shape) -> Iterator[str]:
    """I11: why it went backward, where, with what error; and who decided."""
    reason = evidence.story["reason"]
    if expected.reason is None:
        if reason is not None and expected.state == "COMPLETED":
            yield f"a completed saga gives a reason: {reason}"
    elif reason is None or reason["kind"] != expected.reason:
        yield f"the reason is {reason}, not {expected.reason}"
    elif reason["step"] != expected.step:
        yield f"the reason names {reason['step']}, not {expected.step}"
    elif expected.step is not None and not (reason["type"] and reason["message"]):
        yield f"the reason has no error: {reason}"
    read = str((reason or {}).get("message") or "") + " ".join(row["why"] for row in evidence.story["parked"])
    if expected.says is not None and expected.says not in read:
        yield f"nobody is told {expected.says!r}, but {read!r}"
    parked = [row["step"] for row in evidence.story["parked"]]
    if parked != ([expected.parked] if expected.parked else []):
        yield f"parked are {parked}, not {expected.parked}"
    about_steps = [row for row in evidence.story["operator"] if row["step"]]
    decisions = tuple(row["decision"] for row in about_steps if row["who"] and row["reason"])
    if decisions != expected.decisions:
        yield f"the recorded decisions are {decisions}, not {expected.decisions}"


def liveness(evidence: Evidence, expected: Expected, _: Shape) -> Iterator[str]:
    """I12: it ended soon after the last fault, and no transaction was left open."""
    if evidence.seconds > expected.limit:
        yield f"it took {evidence.seconds:.1f} s after the last fault"
    if evidence.idle_transactions:
        yield f"{evidence.idle_transactions} transactions of workers are still open"
    if evidence.prepared:
        yield f"{evidence.prepared} prepared transactions are left"


def nothing_held(evidence: Evidence, expected: Expected, _: Shape) -> Iterator[str]:
    """I13: a saga that is over holds nothing."""
    if expected.state in ("COMPLETED", "COMPENSATED") and evidence.holds:
        yield f"a finished saga still holds {evidence.holds}"


def started_once(evidence: Evidence, _: Expected, __: Shape) -> Iterator[str]:
    """I16: one run for one id."""
    if evidence.runs != 1:
        yield f"there are {evidence.runs} runs"


RULES: Mapping[str, Rule] = {
    "I1": conservation,
    "I2": outcome,
    "I3": effects_once,
    "I4": no_zombie,
    "I8": one_story,
    "I9": reverse_order,
    "I10": no_way_back,
    "I11": reason_recorded,
    "I12": liveness,
    "I13": nothing_held,
    "I16": started_once,
}
