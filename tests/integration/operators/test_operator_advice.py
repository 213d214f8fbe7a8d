"""No advice harms: each command that is printed for a stuck saga is run in that state, and nothing is lost or doubled.

The kinds of commands that the product prints are found in its source. A kind that none of the states prints must be
run by the test that is named for it here.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from saga_cli.main import command_names
from tests.integration.operators.advice import LOOKS
from tests.integration.operators.conftest import Observed
from tests.integration.operators.states import STATES, State
from tests.unit.test_message_form import ROOMS

ROOT = Path(__file__).parents[3]

RUN_ELSEWHERE = {
    "cancel": "tests/integration/cli/test_operator_commands.py",
    "start": "tests/integration/cli/test_start_and_show.py",
    "start --id --input": "tests/integration/cli/test_json_output.py",
    "notify": "tests/integration/cli/test_notification_commands.py",
    "resolve --definition": "tests/integration/cli/test_operator_commands.py",
    "resolve --with": "tests/integration/cli/test_operator_commands.py",
    "resume --undone": "tests/integration/engine/test_deleted_runs.py",
    "simulate": "tests/unit/cli/test_authoring_commands.py",
    "batch": "tests/integration/cli/test_batch.py",
    "forget": "tests/integration/trust/test_forgotten_values.py",
    "enqueued": "tests/integration/enqueued/test_enqueued_commands.py",
    "schedule": "tests/integration/schedules/test_commands.py",
    "trigger --only": "tests/integration/operators/test_reader_states.py",
    "resume --definition": "tests/integration/engine/test_deleted_runs.py",
    "resume --input": "tests/integration/trust/test_left_out_defaults.py",
    "resume --not_ended": "tests/integration/engine/test_deleted_runs.py",
    "resume --committed": "tests/integration/engine/test_lost_commit_points.py",
    "resume --not_committed": "tests/integration/engine/test_lost_commit_points.py",
    "trigger --from --only": "tests/integration/operators/test_reader_states.py",
    "setup": "tests/integration/cli/test_operator_commands.py",
    "dev": "tests/integration/dev/test_dev_stack.py",
    "dev --only": "tests/integration/dev/test_dev_only.py",
}
"""The tests that run what none of the states prints: as the next step of a person, not as the remedy of a state."""


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
def test_what_is_advised_harms_nothing(observed: Observed, state: State) -> None:
    for followed in observed.advice[state.name]:
        assert followed.harm is None, followed
        assert followed.code != 2, f"the command cannot be run as it is printed: {followed}"


ENDED_BY_ADVICE = {
    "a run was terminated": "COMPENSATED",
    "the undo of a completed saga was terminated": "COMPENSATED",
    "the run of the undo of a completed saga was deleted": "COMPENSATED",
    "a bulk workflow was closed": "COMPENSATED",
    "a run was deleted, and its saga holds locks, events or transactions": "RUNNING",
    "a run was deleted, and its saga has open effects alone": "RUNNING",
    "a run was deleted, and its saga has only sent a command": "RUNNING",
    "the newest run was deleted, and an earlier one of the same saga is there": "RUNNING",
    "the run of a second generation was deleted": "RUNNING",
    "a run was deleted, and each later start of its id was refused": "RUNNING",
    "a run was deleted, and only sagas nested in it have effects": "RUNNING",
    "a run was replaced by another saga, which has ended": "RUNNING",
    "a run was replaced by one with another input": "RUNNING",
}


@pytest.mark.parametrize("name", ENDED_BY_ADVICE)
def test_the_advice_ends_the_state(observed: Observed, name: str) -> None:
    assert [followed.after.state for followed in observed.advice[name]][-1:] == [ENDED_BY_ADVICE[name]]


def test_the_advice_about_the_locks_of_an_open_saga_continues_it(observed: Observed) -> None:
    """`saga reconcile --repair` would leave them."""
    [kept] = [check for check in observed.doctor["saga.toml"] if "its effects are still there" in check["message"]]
    assert kept["check"] == "locks"
    [name] = [name for name, id in observed.ids.items() if kept["help"] == f"saga resume {id}"]
    [followed] = [followed for followed in observed.advice[name] if followed.command == kept["help"]]
    assert (followed.code, followed.before.locks, followed.after.locks, followed.after.state) == (0, 1, 1, "RUNNING")
    [left] = [id for name, id in observed.ids.items() if name == "a closed saga without effects holds locks"]
    [over] = [check for check in observed.doctor["saga.toml"] if check["help"] == "saga reconcile --repair"]
    assert over["message"].startswith(f"{left} is over and holds ")
    [followed] = observed.advice["a closed saga without effects holds locks"]
    assert (followed.output, followed.after.locks) == ("its locks are released", 0)


def kinds(room: str) -> Iterator[str]:
    """The kinds of commands that the sources of a room print through ``saga_command``: the verb and its options."""
    for file in sorted((ROOT / room).rglob("*.py")):
        source = file.read_text(encoding="utf-8")
        nodes = ast.walk(ast.parse(source)) if "saga_command(" in source else ()
        for node in nodes:
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "saga_command":
                verbs = [each_node.value for each_node in ast.walk(node.args[0]) if isinstance(each_node, ast.Constant)]
                assert verbs, f"{file}:{node.lineno}: the verb is not a literal"
                named = [word.arg for word in node.keywords if word.arg is not None]
                named += [
                    str(key.value)
                    for word in node.keywords
                    if word.arg is None and isinstance(word.value, ast.Dict)
                    for key in word.value.keys
                    if isinstance(key, ast.Constant)
                ]
                yield from (kind(str(verb), named) for verb in verbs)


WITHOUT_MEANING = ("reason", "where", "op", "error", "result", "evidence", "saga", "since", "label", "fail", "stuck")
"""Options that do not make another kind of command."""


def kind(verb: str, options: list[str]) -> str:
    return " ".join(
        [
            verb,
            *(f"--{option}" for option in sorted(name.strip("_") for name in options) if option not in WITHOUT_MEANING),
        ]
    )


def test_every_kind_of_advice_is_run(observed: Observed) -> None:
    advised = {kind for room in ROOMS for kind in kinds(room)}
    changing = {
        advice for advice in advised if advice.split()[0] not in LOOKS and advice not in ("reconcile", "relay --status")
    }
    run = set()
    for its in observed.advice.values():
        for followed in its:
            words = followed.command.split()
            run.add(kind(words[1], [re.sub("^--", "", word) for word in words if word.startswith("--")]))
    assert changing - run - RUN_ELSEWHERE.keys() == set(), "none of the states prints it"
    assert RUN_ELSEWHERE.keys() - changing == set(), "nothing prints it any more"
    assert set(command_names()) >= {advice.split()[0] for advice in advised}
    for test in RUN_ELSEWHERE.values():
        assert (ROOT / test).is_file()


def test_what_is_advised_for_many_sagas_harms_none(observed: Observed) -> None:
    for followed in observed.advice_for_many:
        assert (followed.harm, followed.code) == (None, 0), followed


def test_each_place_that_has_advised_is_followed(observed: Observed) -> None:
    """Whatever a place of the source has composed for the states, one of its commands has been run there."""
    every = [*itertools.chain.from_iterable(observed.advice.values()), *observed.advice_for_many]
    run = {followed.command for followed in every}
    changing = {
        place: commands
        for place, commands in observed.composed.items()
        if any(command.split()[1] not in LOOKS and "--status" not in command for command in commands)
    }
    assert {place: commands for place, commands in changing.items() if commands.isdisjoint(run)} == {}
    assert len(changing) > 15, "the places are recorded"
