"""A run that repeats an earlier one does what a single run could have done, although reads answer it differently."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from typing import Any

import pytest

from sagas.definition.model import Definition, has_effect
from sagas.machine.earlier.known_steps import LeftState
from sagas.protocol.messages import RunWasReset
from sagas.protocol.outcomes import Outcome
from sagas.text.exact_json import decode_json, encode_json
from tests.unit.engine.machine.driver import MachineDriver, op, probe, saga, step

READS = ("r0", "r1")
Answers = Mapping[str, Any]


def random_saga(chance: random.Random, *, may_finish: bool = True) -> Definition:
    """Reads, and behind them steps that depend on one of them: by a condition, a list or a `finish`."""
    steps = [step(read, kind="read", on=None) for read in READS]
    for number in range(chance.randint(3, 7)):
        result = f"steps.{chance.choice(READS)}.result"
        match chance.randint(0, 6):
            case 0:
                steps.append(step(f"s{number}", for_each=f"${{{{ {result}.list }}}}"))
            case 1 if may_finish:
                end = op("finish", {"when": f"${{{{ {result}.on }}}}", "output": 1})
                steps.append(step(f"s{number}", kind="read", do=end))
            case _:
                steps.append(step(f"s{number}", if_=chance.choice([f"{result}.on", f"!{result}.on"])))
    return saga(*steps)


def random_answers(chance: random.Random) -> Answers:
    return {read: Outcome.done({"on": chance.random() < 0.5, "list": [1, 2][: chance.randint(0, 2)]}) for read in READS}


def effects(driver: MachineDriver) -> frozenset[str]:
    """The entries whose effects are in place."""
    steps = {step.id for step in driver.machine.definition.steps if has_effect(step)}
    rows = driver.story["steps"]
    return frozenset(row["id"] for row in rows if row["id"].partition("#")[0] in steps and row["outcome"] == "done")


def single_runs(definition: Definition, first: Answers, second: Answers) -> set[frozenset[str]]:
    """The effects of single runs whose reads answer like one of the two."""
    choices = [[{read: first[read]}, {read: second[read]}] for read in READS]
    return {
        effects(MachineDriver(definition, answers={k: v for part in parts for k, v in part.items()}).run())
        for parts in itertools.product(*choices)
    }


@pytest.mark.parametrize("seed", range(25))
def test_a_run_after_a_reset(seed: int) -> None:
    chance = random.Random(seed)
    definition = random_saga(chance)
    first, second = random_answers(chance), random_answers(chance)
    whole = MachineDriver(definition, answers=first).run()
    for stop in [id for id in whole.log if id not in READS]:
        earlier = MachineDriver(definition, answers=first, hold=[stop]).run()
        left = LeftState.of(decode_json(encode_json(earlier.machine.snapshot())))
        repeated = MachineDriver(definition, answers=second)
        repeated.feed(
            RunWasReset(repeated.now, left.generations, "before", left.records, decisions=left.decisions)
        ).run()
        assert repeated.state == "COMPLETED"
        assert effects(repeated) in single_runs(definition, first, second), (stop, repeated.log)


@pytest.mark.parametrize("seed", range(25))
def test_a_run_of_a_deleted_saga_does_not_do_otherwise_unasked(seed: int) -> None:
    """Guards alone tell of the deleted run."""
    chance = random.Random(seed)
    definition = random_saga(chance, may_finish=False)
    first, second = random_answers(chance), random_answers(chance)
    whole = MachineDriver(definition, answers=first).run()
    for stop in [id for id in whole.log if id not in READS]:
        earlier = MachineDriver(definition, answers=first, hold=[stop]).run()
        in_guards = dict.fromkeys(effects(earlier), 1)
        repeated = MachineDriver(definition, answers=second, repeats=True)
        repeated.feed(RunWasReset(repeated.now, in_guards, "before", state_is_lost=True, in_guards=in_guards)).run()
        if repeated.state == "COMPLETED":
            assert effects(repeated) in single_runs(definition, first, second), (stop, repeated.log)
        else:
            assert repeated.state in ("PARKED", "COMPENSATED")


def random_saga_with_pivot(chance: random.Random) -> Definition:
    """Calls with and without a guard before a pivot, which has either a guard or a probe."""
    steps = [step(f"s{number}", on=chance.choice(["shop", None])) for number in range(chance.randint(1, 4))]
    if chance.random() < 0.5:
        steps.append(step("pay", kind="pivot"))
    else:
        steps.append(step("pay", kind="pivot", on=None, probe=probe(seals=True)))
    return saga(*steps, step("last", kind="retriable"))


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_a_run_that_is_cancelled_after_a_reset_undoes_nothing_past_the_pivot(seed: int, made: bool) -> None:
    definition = random_saga_with_pivot(random.Random(seed))
    steps = [step.id for step in definition.steps]
    answers = {"pay~seal": "done", "pay~probe": "found"} if made else {"pay~probe": "absent"}
    for stop in steps[1:]:
        earlier = MachineDriver(definition, hold=[stop]).run()
        left = LeftState.of(decode_json(encode_json(earlier.machine.snapshot())))
        repeated = MachineDriver(definition, answers=answers, hold=["s0"]).start()
        commit_point = "past" if left.committed else "before"
        repeated.feed(RunWasReset(repeated.now, left.generations, commit_point, left.records)).cancel()
        repeated.end("s0").run()
        if stop == "last" or (stop == "pay" and made):
            assert (repeated.state, repeated.undone) == ("COMPLETED", []), stop
        else:
            assert repeated.state == "COMPENSATED"
            assert set(steps[: steps.index(stop)]) <= set(repeated.undone), stop
