"""Servers shared by the integration tests of one process or of the whole run."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from sagas.settings import masking
from sagas.text.json_values import encodable
from tests.helpers.database_servers import DatabaseServer, mariadb, postgres
from tests.helpers.hanging_tests import task_stacks
from tests.helpers.last_start import add_option, count_not_run, skip_if_late
from tests.helpers.new_databases import drop_databases
from tests.helpers.processes import Process, TemporalServer
from tests.helpers.sampling import is_long, mark_left_out, mark_scaled
from tests.helpers.shared_servers import end_servers, run_folder, shared_address
from tests.helpers.temporary_folder import use_memory

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

    from tests.helpers.kafka_broker import Broker, BrokerProcess
    from tests.helpers.scheduling import FilesAndFolders

RUN_FOLDER = use_memory()
HAS_FAILED = pytest.StashKey[bool]()
settings.load_profile("short")

LONG_RUNNING = (
    "tests/faults/test_cells.py",
    "tests/integration/demo/test_demo.py",
    "tests/unit/spark",
    "tests/docs/test_front_door.py",
    "tests/docs/test_tutorial.py",
    "tests/integration/spark",
    "tests/integration/dev",
    "tests/patterns",
    "tests/integration/trust",
    "tests/integration/web_ui",
    "tests/integration/operators",
    "tests/unit/engine/machine_properties",
)
"""Where the longest files are, see :func:`pytest_collection_modifyitems`."""


SLOW_TIMEOUT = 1800
"""Seconds after which a slow test hangs; the others have those of pyproject.toml."""


def pytest_addoption(parser: pytest.Parser) -> None:
    add_option(parser)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without collecting garbage: there is none, and each process would spend two seconds on it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first: xdist hands out files one by one, and a long one at the end would keep one process alone.

    What is left out is marked before pytest deselects slow tests.
    """
    items.sort(key=_place_of_file)
    mark_left_out(items)
    mark_scaled(items)
    for item in items:
        takes_long = item.get_closest_marker("slow") or (is_long() and item.get_closest_marker("scaled"))
        if takes_long and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT))


def _place_of_file(item: pytest.Item) -> int:
    id = item.nodeid  # built anew by each look
    return next((place for place, path in enumerate(LONG_RUNNING) if id.startswith(path)), len(LONG_RUNNING))


def pytest_collection_finish() -> None:
    """Take what the collection has made out of later garbage collections: it stays, and is most of all objects.

    To collect before would take each process a second, for little: see :func:`pytest_collection`.
    """
    gc.freeze()
    gc.set_threshold(10_000)  # as in tests/helpers/freeze_gc.py


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    skip_if_late(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add where its tasks waited to the report of a test that took too long.

    A report that cannot be encoded would end the whole run: xdist sends it, and some tests have half surrogate pairs.
    """
    report = yield
    if call.excinfo is not None and "from pytest-timeout" in str(call.excinfo.value):
        report.sections.append(("Tasks", task_stacks()))
    report.sections = [(name, encodable(text)) for name, text in report.sections]
    if report.failed and encodable(text := str(report.longrepr)) != text:
        report.longrepr = encodable(text)
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Before the processes of xdist start."""
    from tests.helpers.compiled_files import compile_files

    compile_files(config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """Tell each process of xdist how tests are distributed: xdist itself hides it from them."""
    node.workerinput["dist"] = node.config.option.dist


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FilesAndFolders | None:
    """``--dist loadfile``, with what needs a Spark session as one file; any other value is left to xdist."""
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.helpers.scheduling import FilesAndFolders

    return FilesAndFolders(config, log)


@pytest.fixture(autouse=True)
def _no_secrets_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets that settings were read with stay masked as long as a process lives, also words such as `secret`."""
    monkeypatch.setattr(masking, "_known", set())
    monkeypatch.setattr(masking, "_pattern", None)


@pytest.fixture(scope="module", autouse=True)
def _databases_of_the_file() -> Iterator[None]:
    """Drop them last, when what the other fixtures of the file have started has ended."""
    yield
    drop_databases()


@pytest.fixture(scope="session")
def temporal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporalServer]:
    """A real Temporal server with its Web UI."""
    with TemporalServer(tmp_path_factory.mktemp("temporal")) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[DatabaseServer]:
    """One PostgreSQL for all tests of this process: make a database of your own, and never kill it."""
    from tests.helpers.rights_looks import looking_once

    with postgres() as server, looking_once(server):
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[DatabaseServer]:
    """One MariaDB for all tests of this process: make a database of your own, and never kill it."""
    with mariadb() as server:
        yield server


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Broker:
    """One broker for all tests of the run: make topics of your own, and never kill it."""
    from tests.helpers.kafka_broker import Broker, BrokerProcess

    def start(folder: Path) -> tuple[Process, str]:
        broker = BrokerProcess(folder).start()
        return broker, broker.address

    return Broker(shared_address(run_folder(tmp_path_factory), "kafka", start))


@pytest.fixture
def lossy_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker for one test that may lose the ends of transactions on restart."""
    from tests.helpers.lossy_broker import start_lossy_broker

    broker = start_lossy_broker(tmp_path / "kafka")
    yield broker
    broker.kill()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep what failed tests wrote until the next run."""
    session.config.stash[HAS_FAILED] = session.testsfailed > 0


def pytest_unconfigure(config: pytest.Config) -> None:
    """The servers of the run end with its first process: with xdist, the others end before it."""
    if not hasattr(config, "workerinput"):
        end_servers(config._tmp_path_factory.getbasetemp())  # pyright: ignore[reportAttributeAccessIssue]
    if RUN_FOLDER is not None and not config.stash.get(HAS_FAILED, False):
        RUN_FOLDER.remove_at_exit()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was not run, and tables of faults and patterns.

    Here, because with xdist the printing process loads no test module.
    """
    from tests.patterns.table import row_of
    from tests.patterns.table import table as pattern_table

    reports = [report for kind in ("passed", "failed", "error") for report in terminalreporter.stats.get(kind, [])]
    if rows := [row for report in reports if (row := row_of(report)) is not None]:
        terminalreporter.section("patterns")
        for line in pattern_table(rows):
            terminalreporter.write_line(line)
    if left := count_not_run(terminalreporter.stats.get("skipped", [])):
        terminalreporter.write_sep("!", f"{left:,} tests were NOT run, because the time of this run was over", red=True)
    if not any("tests/faults/" in getattr(report, "nodeid", "") for report in reports):
        return
    from tests.faults.table import cell_id, table  # a second to import

    results: dict[str, bool] = {}
    for kind in ("passed", "failed", "error", "xfailed"):
        for report in terminalreporter.stats.get(kind, []):
            cell = cell_id(getattr(report, "nodeid", ""))
            if cell is not None:
                results[cell] = results.get(cell, True) and kind == "passed"
    if results:
        terminalreporter.section("faults × positions")
        for line in table(results):
            terminalreporter.write_line(line)
