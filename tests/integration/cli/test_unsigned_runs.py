"""`saga list` with a run that a stranger has started and closed under the id of a saga."""

from __future__ import annotations

import pytest

from tests.integration.cli.conftest import CommandLine, fresh
from tests.integration.cli.test_start_and_show import until_shown
from tests.integration.trust.test_forged_outcomes import close_as_stranger, forged_view


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("state", ["COMPLETED", "COMPENSATED"])
async def test_what_an_unsigned_run_says_is_listed_as_unverified(cli: CommandLine, state: str) -> None:
    id = fresh("forged")
    await close_as_stranger(cli.client, id, {**forged_view(id, state), "saga": "trip"})
    words = ("list", "--saga", "own")
    await until_shown(cli, words, lambda rows: id in [row["id"] for row in rows])
    [line] = [line for line in (await cli.saga(*words)).out.splitlines() if line.startswith(id)]
    assert line.split()[:3] == [id, "own", state]
    assert "(unverified)" in line
    assert "trip" not in line
