"""Which services a user names with `--only`, and what is wrong with a choice."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from saga_workers.dev.services import NAMES
from sagas.errors import UsageError
from sagas.settings import Settings
from sagas.settings.model import did_you_mean

_ALL = f"the services are {', '.join(NAMES)}"


def service_names(words: Sequence[str] | None) -> list[str] | None:
    """The names in the values of `--only`, separated by commas or spaces; None: all services.

    Raises:
        UsageError: a value names nothing, or something unknown.
    """
    if words is None:
        return None
    names = [name for word in words for name in re.split(r"[,\s]+", word) if name]
    if not names:
        raise UsageError("--only names no service", help=_ALL)
    refuse_unknown(names)
    return names


def refuse_unknown(names: Collection[str]) -> None:
    """Raises UsageError when a name is not one of a service."""
    for name in names:
        if name == "spark":
            raise UsageError(
                "spark is not a service of its own: the worker starts Spark with the first Spark step, so name worker",
                help=f"{_ALL}; Spark needs Java 17 and, under [spark] in saga.toml, ledger = a SQL connection",
            )
        if name not in NAMES:
            raise UsageError(f"There is no service {name}{did_you_mean(name, NAMES)}", help=_ALL)


def refuse_incomplete(settings: Settings, chosen: Collection[str], running: Collection[str]) -> None:
    """Raises UsageError when a process of the project's own would start without a server that only this stack has."""
    from saga_workers.temporal_client import names_server

    own = [name for name in ("worker", "relay", "trigger") if name in chosen]
    needed = {
        "temporal": "worker" in own and not names_server(settings),
        "postgres": bool(own) and any(one.written_url is None for one in settings.sql_connections()),
        "kafka": own not in ([], ["worker"]) and settings.kafka.bootstrap_servers is None,
    }
    missing = [name for name, is_needed in needed.items() if is_needed and name not in {*chosen, *running}]
    if missing:
        every = [name for name in NAMES if name in {*missing, *chosen}]
        raise UsageError(
            f"the {' and the '.join(own)} cannot start without {' and '.join(missing)}: "
            f"saga dev up --only {','.join(every)}"
        )
