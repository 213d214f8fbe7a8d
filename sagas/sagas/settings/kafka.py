"""``[kafka]`` of saga.toml as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sagas.errors import UsageError
from sagas.settings.secrets import Secret, reveal


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """How to reach Kafka, and what the engine may use there.

    ``written``: the settings speak of Kafka. ``embedded``: the address is the one `saga dev up` wrote.
    ``outbox`` is the connection that keeps the rows of `kafka.publish` and `kafka.request`. ``prefix`` begins every
    transactional id, group id and topic of the engine's own. ``transaction_timeout`` and ``retention`` are seconds,
    ``batch`` events go into one transaction, ``max_message_bytes`` counts key, value and headers of one event,
    ``shards`` is how many relays can work on one outbox at once. ``topics`` are those of events that no definition
    names, because Python code does. ``client`` are properties of librdkafka.
    """

    root: Path = Path()
    written: bool = False
    bootstrap_servers: str | None = None
    embedded: bool = False
    outbox: str | None = None
    prefix: str = "saga"
    transaction_timeout: float = 60.0
    batch: int = 500
    max_message_bytes: int = 1_000_000
    shards: int = 4
    retention: float = 7 * 86_400.0
    topics: tuple[str, ...] = ()
    client: Mapping[str, str | Secret] = field(default_factory=dict)

    @property
    def servers(self) -> str:
        """The brokers to ask first, ``host:port`` with commas between. Raises UsageError: none is known."""
        if self.bootstrap_servers is None:
            raise UsageError(
                "The settings name no Kafka, and there is no embedded one.",
                help="saga dev up    (or bootstrap_servers under [kafka] in saga.toml)",
            )
        return self.bootstrap_servers

    def client_properties(self) -> dict[str, str]:
        """``client`` with its secrets filled in; files are those of the project folder.

        Raises:
            UsageError: a secret or a file is missing.
        """
        properties: dict[str, str] = {}
        for name, value in self.client.items():
            text = reveal(value, setting=f"kafka.client.{name}", root=self.root)
            is_file = name.endswith(".location") and text != "probe"
            properties[name] = self._file(name, text) if is_file else text
        return properties

    def _file(self, name: str, text: str) -> str:
        path = self.root / Path(text).expanduser()
        if not path.exists():
            raise UsageError(f"kafka.client.{name} names {path}, which is not there.")
        return str(path)
