"""A user's project: its settings, actions and definitions, each read on first use."""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path

from sagas.actions.consumers import MessageHandlers, load_message_handlers
from sagas.actions.registry import Actions, load_actions
from sagas.definition.diagnostics import Diagnostic
from sagas.definition.loader import find_definition_files, load_definitions, parse_draft
from sagas.definition.model import Definition
from sagas.definition.parser.draft import Connections, KafkaResources, ProjectContext, SagaDraft, SparkResources
from sagas.errors import UsageError, did_you_mean
from sagas.settings import HttpService, Settings
from sagas.settings.trust import require_own, require_own_modules
from sagas.text.bounded_files import read_bounded


class Project:
    """Reads a project's files once, unless :meth:`read_again` is called; every property raises UsageError if that
    fails.
    """

    def __init__(
        self, settings: Settings, actions: Actions | None = None, message_handlers: MessageHandlers | None = None
    ) -> None:
        self.settings = settings
        self._given_actions = actions
        self._given_message_handlers = message_handlers
        self._read_separately: dict[str, Definition] = {}
        self._read_versions: dict[Path, FileVersion | None] = {}

    @cached_property
    def actions(self) -> Actions:
        """The registered Python actions."""
        if self._given_actions is not None:
            return self._given_actions
        require_own_modules(self.settings.actions, self.settings.root)
        return load_actions(self.settings.actions, self.settings.root)

    @cached_property
    def message_handlers(self) -> MessageHandlers:
        """The consumers and bridges, which are declared in the same modules as the actions."""
        if self._given_message_handlers is not None:
            return self._given_message_handlers
        require_own_modules(self.settings.actions, self.settings.root)
        return load_message_handlers(self.settings.actions, self.settings.root)

    @property
    def _folders(self) -> list[Path]:
        """The folders of the definitions. One that is only the default need not exist."""
        return [
            definition
            for definition in self.settings.definitions
            if self.settings.config_file is not None or definition.exists()
        ]

    @cached_property
    def _all_definitions(self) -> tuple[dict[str, Definition], list[Diagnostic]]:
        self._read_versions = self._file_versions()
        files = list(self._read_versions)
        for path in (*self._folders, *files):
            require_own(path)
        return load_definitions(files, self.context)

    def has_changed(self) -> bool:
        """Return whether the files of the definitions are others now than those that were read."""
        _ = self._all_definitions
        return self._file_versions() != self._read_versions

    def read_again(self) -> None:
        """Read the definitions again if their files have changed, with the actions and settings as they are.

        A definition that is gone, or has errors now, stays as it was. Raises UsageError or OSError.
        """
        if not self.has_changed():
            return
        latest = Project(self.settings, self.actions, self.message_handlers)
        definitions, diagnostics = latest._all_definitions
        self._read_versions = latest._read_versions
        self.__dict__["_all_definitions"] = {**self.definitions, **definitions}, diagnostics

    def _file_versions(self) -> dict[Path, FileVersion | None]:
        return {path: _file_version(path) for path in find_definition_files(self._folders)}

    @cached_property
    def context(self) -> ProjectContext:
        """The context in which the definitions are checked."""
        settings = self.settings
        return ProjectContext(
            self.actions,
            connection_facts(settings),
            SparkResources(settings.spark_ledger, settings.catalogs, settings.spark.remote is not None),
            KafkaResources(settings.kafka.outbox),
            settings.lock_connection,
            None if settings.config_file is None else tuple(settings.vars),
            None if settings.config_file is None else settings.serve.public_url is not None,
            None if settings.config_file is None else settings.temporal.task_queue,
        )

    @property
    def definitions(self) -> dict[str, Definition]:
        """The definitions without errors, by saga name."""
        return self._all_definitions[0]

    @property
    def diagnostics(self) -> list[Diagnostic]:
        """The errors and warnings of the definition files."""
        return self._all_definitions[1]

    @property
    def drafts(self) -> list[SagaDraft]:
        """The definitions without errors, with their positions in the files; read again by each call."""
        drafts = []
        for path in find_definition_files(self._folders):
            require_own(path)
            try:
                text = read_bounded(path).decode("utf-8-sig")
            except (OSError, UnicodeDecodeError):
                continue  # a diagnostic says so
            draft, _ = parse_draft(text, str(path), self.context)
            drafts += [draft] if draft is not None and draft.definition.saga in self.definitions else []
        return drafts

    def definition(self, name: str) -> Definition:
        """The definition of a saga. Raises UsageError if it is unknown or has errors."""
        definition = self._read_separately_or_none(name) or self.definitions.get(name)
        if definition is not None:
            return definition
        if not self._folders and self.settings.config_file is None:
            raise UsageError(
                f"there is no saga {name}, because {self.settings.root} is not in a project",
                help="choose a project with --config DIR, or create one with saga init DIR",
            )
        errors = [diagnostic for diagnostic in self.diagnostics if diagnostic.severity == "error"]
        folders = ", ".join(map(self._shown, self.settings.definitions)) or "(none)"
        if errors:
            # A file has the name of its saga, if nothing speaks against it.
            first = min(errors, key=lambda error: Path(error.file).name.partition(".")[0] != name)
            where = f"{self._shown(Path(first.file))}:{first.line}:{first.column}"
            if not any(_mentions(Path(error.file), name) for error in errors):
                # Its definition is in none of the files with errors, so it is rather misspelt.
                raise UsageError(
                    f"there is no saga named {name} in {folders}{did_you_mean(name, self.definitions)}",
                    help=f"another definition has an error, {where} {first.code}: `saga validate` shows all of them",
                )
            raise UsageError(
                f"there is no valid saga {name}: {where} {first.code} {first.message}",
                help="run `saga validate` for all diagnostics",
            )
        raise UsageError(
            f"there is no saga named {name} in {folders}{did_you_mean(name, self.definitions)}",
            help="`saga validate` lists the definitions that were found",
        )

    def _shown(self, path: Path) -> str:
        """The path within the project: the histories of refused runs have the message, and no path of the machine."""
        root = self.settings.root
        return str(path.relative_to(root)) if path.is_relative_to(root) else path.name

    def _read_separately_or_none(self, name: str) -> Definition | None:
        """The definition, reading only the files that mention the name: starting a saga does not need the others.

        None if these files do not suffice: the saga is unknown, has errors, or nests other sagas.
        """
        if "_all_definitions" in self.__dict__:
            return None  # all files have been read already
        if name not in self._read_separately:
            files = [path for path in find_definition_files(self._folders) if _mentions(path, name)]
            for path in files:
                require_own(path)
            definition = load_definitions(files, self.context)[0].get(name)
            if definition is None or any(step.do.uses == "saga" for step in definition.steps):
                return None
            self._read_separately[name] = definition
        return self._read_separately[name]


def connection_facts(settings: Settings) -> Connections:
    """Return what the checks of definitions know of each connection."""
    return {
        name: {
            "kind": connection.kind,
            **({} if connection.url_setting is None else {"url": connection.url_scheme}),
            **(connection.promises if isinstance(connection, HttpService) else {}),
            **({"key_header": connection.key_header} if isinstance(connection, HttpService) else {}),
        }
        for name, connection in settings.connections.items()
    }


FileVersion = tuple[int, int, int, int]


def _file_version(path: Path) -> FileVersion | None:
    """Differs after every change of the file; None if it cannot be read."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino


def _mentions(path: Path, name: str) -> bool:
    """Return whether the file has the name, and not only as a part of a longer one."""
    try:
        return re.search(rb"(?<![\w-])%s(?![\w-])" % re.escape(name.encode()), read_bounded(path)) is not None
    except OSError:
        return False  # reading all files reports the error
