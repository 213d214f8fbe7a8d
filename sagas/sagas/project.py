"""One user's project: its settings, its actions and its definitions, each read when it is first needed."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from sagas.actions import Actions, load_actions
from sagas.consumers import Readers, load_readers
from sagas.definition.diagnostics import Diagnostic
from sagas.definition.draft import KafkaHome, SparkHome
from sagas.definition.files import find_files
from sagas.definition.model import Definition
from sagas.definition.parse import load_definitions
from sagas.errors import UsageError
from sagas.settings import Settings
from sagas.settings.model import did_you_mean


class Project:
    """Reads a project's files once; every property raises UsageError with one sentence when that fails."""

    def __init__(self, settings: Settings, actions: Actions | None = None, readers: Readers | None = None) -> None:
        self.settings = settings
        self._given = actions
        self._given_readers = readers
        self._alone: dict[str, Definition] = {}

    @cached_property
    def actions(self) -> Actions:
        """The registered Python actions."""
        if self._given is not None:
            return self._given
        return load_actions(self.settings.actions, self.settings.root)

    @cached_property
    def readers(self) -> Readers:
        """The consumers and bridges, which stand in the modules of the actions."""
        if self._given_readers is not None:
            return self._given_readers
        return load_readers(self.settings.actions, self.settings.root)

    @cached_property
    def _loaded(self) -> tuple[dict[str, Definition], list[Diagnostic]]:
        return load_definitions(self.settings.definitions, self.actions, self._connections(), self.spark, self.kafka)

    def _connections(self) -> dict[str, dict[str, Any]]:
        return {
            name: {"kind": connection.kind, **connection.options}
            for name, connection in self.settings.connections.items()
        }

    @property
    def spark(self) -> SparkHome:
        """What the settings say about Spark."""
        return SparkHome(self.settings.spark_ledger, self.settings.catalogs)

    @property
    def kafka(self) -> KafkaHome:
        """What the settings say about Kafka."""
        return KafkaHome(self.settings.kafka.outbox)

    @property
    def definitions(self) -> dict[str, Definition]:
        """The definitions without errors, by the saga's name."""
        return self._loaded[0]

    @property
    def diagnostics(self) -> list[Diagnostic]:
        """What is wrong with the definition files, errors and warnings."""
        return self._loaded[1]

    def definition(self, name: str) -> Definition:
        """The definition of a saga. Raises UsageError: unknown (did you mean …), or its file has errors."""
        found = self._read_alone(name) or self.definitions.get(name)
        if found is not None:
            return found
        errors = [one for one in self.diagnostics if one.severity == "error"]
        folders = ", ".join(str(path) for path in self.settings.definitions) or "(none)"
        if errors:
            first = errors[0]
            raise UsageError(
                f"there is no valid saga {name}: {first.file}:{first.line}:{first.column} {first.code} {first.message}",
                help="run `saga validate` to see everything",
            )
        raise UsageError(
            f"there is no saga called {name} in {folders}{did_you_mean(name, self.definitions)}",
            help="`saga validate` lists the definitions that were found",
        )

    def _read_alone(self, name: str) -> Definition | None:
        """The definition from the files that mention the name: a start has no use for all the others.

        None where that is not enough to be sure: it is unknown or has errors, or it nests sagas.
        """
        if "_loaded" in self.__dict__:
            return None  # everything has been read already
        if name not in self._alone:
            files = [path for path in find_files(self.settings.definitions) if _mentions(path, name)]
            found = load_definitions(files, self.actions, self._connections(), self.spark, self.kafka)[0].get(name)
            if found is None or any(step.do.uses == "saga" for step in found.steps):
                return None
            self._alone[name] = found
        return self._alone[name]


def _mentions(path: Path, name: str) -> bool:
    try:
        return name.encode() in path.read_bytes()
    except OSError:
        return False  # reading all of them tells what is wrong with it
