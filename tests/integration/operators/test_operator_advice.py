"""No advice harms: each command that is printed for a stuck saga is run in that state, and nothing is lost or doubled.

All commands that the product prints as advice are found in its source. One that none of the states prints must be run
by the test that is named for it here.
"""

from __future__ import annotations

import ast
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


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
def test_what_is_advised_harms_nothing(observed: Observed, state: State) -> None:
    for followed in observed.advice[state.name]:
        assert followed.harm is None, followed
        assert followed.code != 2, f"the command cannot be run as it is printed: {followed}"


ENDED_BY_ADVICE = {
    "a run was terminated": "COMPENSATED",
    "a bulk workflow was closed": "COMPENSATED",
}


@pytest.mark.parametrize("name", ENDED_BY_ADVICE)
def test_the_advice_ends_the_state(observed: Observed, name: str) -> None:
    assert [followed.after.state for followed in observed.advice[name]][-1:] == [ENDED_BY_ADVICE[name]]
