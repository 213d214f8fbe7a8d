from __future__ import annotations

import asyncio

import pytest

from tests.helpers.waiting import until, until_blocking, until_in_thread


async def test_the_value_of_a_condition_is_given_whatever_it_is() -> None:
    values = iter([0, None, 7])

    async def asked() -> int | None:
        return next(values)

    assert await until(asked, pause=0.0) == 7
    assert await until(lambda: asyncio.sleep(0, "later")) == "later"
    assert await until_in_thread(lambda: "now") == "now"
    assert until_blocking(lambda: [1]) == [1]


async def test_the_error_has_the_condition_and_its_last_value() -> None:
    with pytest.raises(AssertionError, match=r"not within 0 s: .*until\(lambda: \{\}, limit.*; the last value is \{\}"):
        await until(lambda: {}, limit=0.0)
    with pytest.raises(AssertionError, match="not within 0 s: three rows; the last value is 0"):
        await until_in_thread(lambda: 0, "three rows", limit=0.0)
    with pytest.raises(AssertionError, match="not within 0 s: three rows; the last value is 0"):
        until_blocking(lambda: 0, "three rows", limit=0.0)
