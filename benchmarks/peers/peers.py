"""Each peer: which processes it needs, and how they are started."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bulk import INPUT, SETTINGS, SQL_STEP, TABLES, definition
from benchmarks.peers.installation import GO_PROGRAM, PYTHON, RESTATE_SERVER, Installation
from benchmarks.peers.processes import Program, paused, running
from benchmarks.starts import SERVE, TOKEN, WAYS, free_ports, serving
from sagas.settings import load_settings

QUEUE = "peers-by-hand"


@dataclass(frozen=True)
class SharedServers:
    """The servers that the peers share, and what is installed. ``url``: the database with the accounts."""

    folder: Path
    pids: Mapping[str, int]
    installed: Installation

    @property
    def url(self) -> str:
        return self._url("bench")

    @property
    def system_url(self) -> str:
        """A database of DBOS's own on the same server."""
        return self._url("dbos")

    def _url(self, connection: str) -> str:
        return load_settings(self.folder).connection(connection).url.replace("+psycopg", "")

    @property
    def temporal(self) -> str:
        return str(load_settings(self.folder).temporal.address)

    @contextmanager
    def program(
        self, name: str, words: Sequence[str], servers: Sequence[int] = (), *, command: Sequence[str] | None = None
    ) -> Iterator[Program]:
        """A program of this benchmark, with PostgreSQL as the server that it shares with all others.

        Of Temporal and this engine's worker those that are not among its ``servers`` are stopped meanwhile.
        """
        command = command or [sys.executable, "-m", f"benchmarks.peers.{name}"]
        others = {self.pids["temporal"], self.pids["worker"]} - {*servers}
        with paused([*others]), running([*command, *words], self.folder / f"{name}.log") as process:
            yield Program(process, [*servers, self.pids["postgres"]])

    def new_folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.folder))


Open = Callable[[SharedServers], AbstractContextManager[Program]]


@dataclass(frozen=True, slots=True)
class Peer:
    """A way of running the saga. ``needs``: parts of the installation; ``is_slow``: its turns are shorter."""

    name: str
    open: Open
    needs: tuple[str, ...] = ()
    is_slow: bool = False


def make_project(folder: Path) -> None:
    """The saga for this engine, and the tables and databases of all peers."""
    settings = SETTINGS.replace('actions = ["./bulk_participants.py"]\n', "")
    (folder / "saga.toml").write_text(settings + "[connections.dbos]\n" + SERVE)
    (folder / "schema.sql").write_text(TABLES)
    mixed = definition("mixed", SQL_STEP, mixed=True)
    local = f"saga: mixed-local\n{INPUT}defaults: {{timeout: 5s, execution: local}}\n{mixed.partition(INPUT)[2]}"
    (folder / "mixed.saga.yaml").write_text(mixed)
    (folder / "mixed-local.saga.yaml").write_text(local)


@contextmanager
def threads(shared: SharedServers) -> Iterator[Program]:
    with shared.program("no_engine.threads", [shared.url]) as program:
        yield program


@contextmanager
def tasks(shared: SharedServers) -> Iterator[Program]:
    with shared.program("no_engine.tasks", [shared.url]) as program:
        yield program


@contextmanager
def go(shared: SharedServers) -> Iterator[Program]:
    url = shared.url.partition("&require_auth")[0].partition("?require_auth")[0]  # pgx does not know this parameter
    with shared.program("go", [url], command=[str(GO_PROGRAM)]) as program:
        yield program


def engine(module: str, saga: str) -> Open:
    """Open this engine; the program ``module`` starts the sagas."""

    @contextmanager
    def open_engine(shared: SharedServers) -> Iterator[Program]:
        servers = [shared.pids["temporal"], shared.pids["worker"]]
        with shared.program(f"this_engine.{module}", [str(shared.folder), saga], servers) as program:
            yield program

    return open_engine


@contextmanager
def engine_over_http(shared: SharedServers) -> Iterator[Program]:
    [port] = free_ports(1)
    with serving(shared.folder, port, WAYS["shared"]) as serve:
        servers = [shared.pids["temporal"], shared.pids["worker"], serve]
        with shared.program("this_engine.http_starts", [str(port), TOKEN, "mixed"], servers) as program:
            yield program


def temporal(where: str) -> Open:
    """The saga by hand on Temporal; ``where``: remote or local activities."""

    @contextmanager
    def open_temporal(shared: SharedServers) -> Iterator[Program]:
        queue = f"{QUEUE}-{where}"
        worker = [sys.executable, "-m", "benchmarks.peers.temporal.saga", shared.temporal, queue, shared.url]
        with running(worker, shared.folder / f"temporal-{where}.log") as process:
            servers = [shared.pids["temporal"], process.pid]
            with shared.program("temporal.starts", [shared.temporal, queue, where], servers) as program:
                yield program

    return open_temporal


@contextmanager
def restate(shared: SharedServers) -> Iterator[Program]:
    """One node of Restate with its default settings, and the service in one hypercorn process."""
    ingress, admin, fabric, service = free_ports(4)
    folder = shared.new_folder()
    config = folder / "restate.toml"
    config.write_text(
        f'base-dir = "{folder / "data"}"\n'
        f'bind-address = "127.0.0.1:{fabric}"\n'
        f'advertised-address = "http://127.0.0.1:{fabric}"\n'
        'listen-mode = "tcp"\ndisable-telemetry = true\nlog-filter = "warn"\n'
        f'[ingress]\nbind-address = "127.0.0.1:{ingress}"\n'
        f'[admin]\nbind-address = "127.0.0.1:{admin}"\n'
    )
    hypercorn = [str(PYTHON), "-m", "hypercorn", "--bind", f"127.0.0.1:{service}"]
    app = "benchmarks.peers.restate.service:app"
    with contextlib.ExitStack() as stack:
        log = shared.folder / "restate-service.log"
        serves = stack.enter_context(running([*hypercorn, app], log, port=service, DATABASE_URL=shared.url))
        words, log = [str(RESTATE_SERVER), "--config-file", str(config), "--no-logo"], shared.folder / "restate.log"
        server = stack.enter_context(running(words, log, port=admin))
        body = f'{{"uri": "http://127.0.0.1:{service}"}}'.encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{admin}/deployments", body, {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=60).close()
        yield stack.enter_context(shared.program("restate.starts", [str(ingress)], [server.pid, serves.pid]))


@contextmanager
def dbos(shared: SharedServers) -> Iterator[Program]:
    url, system = (each.replace("postgresql:", "postgresql+psycopg:") for each in (shared.url, shared.system_url))
    command = [str(PYTHON), "-m", "benchmarks.peers.dbos.saga"]
    with shared.program("dbos", [url, system], command=command) as program:
        yield program


@contextmanager
def dtm(shared: SharedServers) -> Iterator[Program]:
    """DTM with its default store, and the participant in one uvicorn process."""
    http, grpc, rpc, participant = free_ports(4)
    folder = shared.new_folder()
    config = folder / "dtm.yml"
    config.write_text(f"HttpPort: {http}\nGrpcPort: {grpc}\nJsonRpcPort: {rpc}\nLogLevel: error\n")
    uvicorn = [str(PYTHON), "-m", "uvicorn", "--port", str(participant), "--no-access-log", "--lifespan", "off"]
    app, program = "benchmarks.peers.dtm.participant:app", shared.installed.dtm
    assert program is not None
    with contextlib.ExitStack() as stack:
        log = shared.folder / "dtm-participant.log"
        serves = stack.enter_context(running([*uvicorn, app], log, port=participant, DATABASE_URL=shared.url))
        words = ["env", f"--chdir={folder}", program, "-c", str(config)]
        server = stack.enter_context(running(words, shared.folder / "dtm.log", port=http))
        yield stack.enter_context(shared.program("dtm.starts", [str(http), str(participant)], [server.pid, serves.pid]))


PEERS = (
    Peer("no engine: threads", threads),
    Peer("no engine: asyncio", tasks),
    Peer("no engine: Go", go, ("go",)),
    Peer("this engine: bulk", engine("bulk", "mixed")),
    Peer("this engine: HTTP, shared", engine_over_http),
    Peer("this engine: single", engine("single", "mixed"), is_slow=True),
    Peer("this engine: single, local", engine("single", "mixed-local"), is_slow=True),
    Peer("Temporal by hand", temporal("remote"), is_slow=True),
    Peer("Temporal by hand, local", temporal("local"), is_slow=True),
    Peer("Restate", restate, ("python", "npm")),
    Peer("DBOS", dbos, ("python",)),
    Peer("DTM", dtm, ("python", "dtm")),
)
