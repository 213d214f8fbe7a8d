"""``.saga/``: the state of a project's embedded stack.

``dev.toml``      addresses and URLs of what runs now; the settings read it
``dev/ID``        the identity of this folder: a random id and its path
``dev/<name>.json``  one service: pid, start, ports, whether it is wanted
``warehouse/<name>/``  the tables of an Iceberg catalog on the embedded PostgreSQL
``spark/stage/``  staged output of Spark steps, and rows refused by their audits
``dev/<name>/``   its data;  ``dev/logs/<name>.log``  its output;  ``dev/lock``  held by `up` and `down`
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sagas.errors import SagaError
from sagas.settings.dev_stack import ProcessId, require_own_stack
from sagas.settings.private_files import open_private_log
from sagas.text.exact_json import decode_json, encode_json, readable_json

_MAX_LOG_BYTES = 20_000_000
_LOCK_TIMEOUT = 180.0


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """The record of one service.

    ``wanted``: it was started and not taken down since. ``ports`` and ``data`` outlive the process: ports are reused,
    and ``data`` is what the service remembers (such as a fingerprint).
    """

    wanted: bool = False
    process: ProcessId | None = None
    ports: Mapping[str, int] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)

    def is_alive(self) -> bool:
        return self.process is not None and self.process.is_alive()


class DevFolder:
    """The ``.saga`` folder of one project. Reading creates nothing; ``create`` does.

    Raises UsageError if it, or a record in it, belongs to another user: `saga dev down` ends the processes that it
    names.
    """

    def __init__(self, root: Path) -> None:
        require_own_stack(root)
        self.root = root
        self.path = root / ".saga"
        self.dev = self.path / "dev"
        self.toml = self.path / "dev.toml"
        self.warehouse = self.path / "warehouse"
        self.stage = self.path / "spark" / "stage"

    def create(self) -> None:
        try:
            logs = self.log_file("x").parent
            logs.mkdir(parents=True, exist_ok=True)
            logs.chmod(0o700)
            # PostgreSQL may have to run as `nobody`, who must be able to traverse this folder but not to list it.
            self.dev.chmod(0o711)
            write_atomically(self.path / ".gitignore", "*\n")
        except OSError as error:
            raise SagaError(f"{self.path} cannot be written: {error.strerror}") from error

    def data_folder(self, name: str) -> Path:
        return self.dev / name

    def log_file(self, name: str) -> Path:
        return self.dev / "logs" / f"{name}.log"

    def rotate_log(self, name: str) -> Path:
        log = self.log_file(name)
        if log.exists() and log.stat().st_size > _MAX_LOG_BYTES:
            log.replace(log.with_suffix(".log.1"))
        return log

    def owner(self) -> str:
        """The id of this very folder.

        A copy of a project contains the records of processes that serve the original. So a folder whose recorded path
        still exists elsewhere is a copy: it gets a new id and drops the processes from its records. A folder that was
        moved keeps both.
        """
        file = self.dev / "ID"
        here = str(self.root)
        if file.exists():
            owner, _, path = file.read_text(encoding="utf-8").strip().partition(" ")
            if path == here:
                return owner
            if owner and not Path(path, ".saga", "dev", "ID").exists():
                write_atomically(file, f"{owner} {here}\n")
                return owner
            for file_of_original in self.dev.glob("*.json"):
                self.write(file_of_original.stem, ServiceRecord(data=self.read(file_of_original.stem).data))
            self.toml.unlink(missing_ok=True)
        owner = secrets.token_hex(8)
        write_atomically(file, f"{owner} {here}\n")
        return owner

    def read(self, name: str) -> ServiceRecord:
        """The record of a service; an unreadable one counts as missing (the process is found by its mark)."""
        try:
            data = decode_json((self.dev / f"{name}.json").read_text(encoding="utf-8"))
            process = ProcessId(**data["process"]) if data["process"] else None
            return ServiceRecord(data["wanted"], process, data["ports"], data["data"])
        except (OSError, ValueError, KeyError, TypeError):
            return ServiceRecord()

    def write(self, name: str, record: ServiceRecord) -> None:
        write_atomically(self.dev / f"{name}.json", readable_json(asdict(record), indent=1))

    def write_toml(self, tables: Mapping[str, Mapping[str, str]]) -> None:
        lines = ["# Written by `saga dev up`, deleted by `saga dev down`."]
        for path, table in tables.items():
            lines += ["", f"[{path}]", *(f"{key} = {encode_json(value).decode()}" for key, value in table.items())]
        write_atomically(self.toml, "\n".join(lines) + "\n")

    def wipe(self) -> None:
        """Delete everything, data included. The lock file stays, because others may wait for it."""
        self.toml.unlink(missing_ok=True)
        # Their content is useless without the catalogs and the ledger, which are deleted too.
        for folder in (self.warehouse, self.stage):
            if folder.is_dir():
                shutil.rmtree(folder)
        for entry in self.dev.iterdir():
            if entry.name in ("lock", "ID"):
                continue
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    @contextlib.contextmanager
    def lock(self, on_wait: Callable[[], Any]) -> Iterator[None]:
        """One `up` or `down` at a time; ``on_wait`` is called once if another one holds the lock.

        Raises:
            SagaError: the other one did not finish within three minutes.
        """
        with open_private_log(self.dev / "lock") as file:  # who may read it could hold the lock
            end = time.monotonic() + _LOCK_TIMEOUT
            reported = False
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not reported:
                        on_wait()
                        reported = True
                    if time.monotonic() > end:
                        raise SagaError(
                            "another `saga dev` command is running in this project and does not finish",
                            help=f"find the process that holds {self.dev / 'lock'}",
                        ) from None
                    time.sleep(0.05)
            yield


def write_atomically(path: Path, text: str) -> None:
    """Replace a file atomically: a reader sees the old text or the new one. Only the owner may read it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
