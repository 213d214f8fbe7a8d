"""Sampling: `make test` leaves out many cases, and `make test-long` has them."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.sampling import choose

ROOT = Path(__file__).parents[2]
PRODUCT = list(itertools.product(("postgresql", "mariadb", "sqlite"), range(7), (True, False)))


def test_each_value_of_each_parameter_stays() -> None:
    chosen = [PRODUCT[place] for place in choose(PRODUCT)]
    for column, values in zip(zip(*chosen, strict=True), zip(*PRODUCT, strict=True), strict=True):
        assert set(column) == set(values)
    assert len(chosen) == 7
    assert choose(PRODUCT) == choose(PRODUCT)


def test_values_take_turns() -> None:
    """Each database gets its part of the many values of the other parameter."""
    databases = [PRODUCT[place][0] for place in choose(PRODUCT)]
    assert {databases.count(database) for database in databases} == {2, 3}


def test_rows_of_which_each_has_another_name_are_spread() -> None:
    rows = [(f"case {place}", place) for place in range(20)]
    assert choose(rows, keep=4) == [0, 5, 10, 15]
    assert len(choose(rows)) == 1
    assert choose(rows, keep=50) == list(range(20))


def test_a_rare_value_stays() -> None:
    rows = [(place, "sqlite" if place == 13 else "postgresql") for place in range(20)]
    assert 13 in choose(rows, keep=2)


def test_a_value_without_a_hash_is_told_by_its_text() -> None:
    assert choose([({"a": 1}, 1), ({"a": 1}, 2), ({"a": 2}, 1), ({"a": 2}, 2)]) == [0, 3]


MODULE = """
import pytest
from tests.helpers.sampling import every_nth

@pytest.fixture(params=["x", "y"])
def server(request):
    return request.param

@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["a", "b", "c"])
def test_pairs(server, kind):
    pass

@pytest.mark.sampled("server", keep=3)
@pytest.mark.parametrize("kind", ["a", "b", "c", "d", pytest.param("e", marks=pytest.mark.slow)])
def test_servers(server, kind):
    pass

@pytest.mark.sampled(keep=2)
@pytest.mark.parametrize(("kind", "way"), [("a", 1), ("b", 1), ("c", 1), ("d", 2)])
def test_spread(kind, way):
    pass

@pytest.mark.sampled(turns="server")
def test_turn_1(server):
    pass

@pytest.mark.sampled(turns="server")
@pytest.mark.parametrize("kind", ["a", "b"])
def test_turn_2(server, kind):
    pass

def test_part():
    assert len(every_nth(3, range(9), turn=1)) == SIZE
"""


IN_EACH_RUN = [
    *("pairs[x-a]", "pairs[x-c]", "pairs[y-b]", "part", "servers[x-a]", "servers[x-c]", "servers[y-a]"),
    *("spread[a-1]", "spread[c-1]", "turn_1[x]", "turn_2[x-b]", "turn_2[y-a]"),
]


@pytest.mark.parametrize(
    ("options", "size", "ran"),
    [
        ([], 3, IN_EACH_RUN),
        (["-m", "slow or scaled", "--hypothesis-profile", "long"], 9, None),
    ],
    ids=["make test", "make test-long"],
)
def test_a_run_has_its_part(tmp_path: Path, options: list[str], size: int, ran: list[str] | None) -> None:
    """All tests of a module that has a part of something run in `make test-long`, with all of it."""
    (tmp_path / "test_parts.py").write_text(MODULE.replace("SIZE", str(size)), encoding="utf-8")
    words = ["-p", "tests.conftest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-v", *options]
    program = [sys.executable, "-m", "pytest", *words, str(tmp_path)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    tests = sorted(re.findall(r"::test_(\S+) PASSED", done.stdout))
    assert tests == ran if ran is not None else len(tests) == 27, tests


def test_only_test_modules_ask_for_the_profile() -> None:
    """A module that imports from a helper what depends on the profile would not be marked as `scaled`."""
    asks = re.compile(r"^from tests\.helpers\.sampling import .*\b(scaled|every_nth|examples|is_long)\b", re.MULTILINE)
    files = (file for file in (ROOT / "tests").rglob("*.py") if not file.name.startswith("test_"))
    assert [file.name for file in files if asks.search(file.read_text(encoding="utf-8"))] == ["conftest.py"]
