"""``[ledger]`` and ``[locks]`` of saga.toml: the connections that store the engine's own rows."""

from __future__ import annotations

from sagas.settings.forms import OptionalText, Seconds
from sagas.settings.table import Table, setting


class LedgerSettings(Table):
    """The database of the ledger, and the seconds it keeps outcomes. Without a connection there is no ledger."""

    heading = "ledger"
    summary = (
        "Where the engine keeps rows that belong to no participant, and [the outcomes of sagas](../how-to/ledger.md)."
    )

    connection: OptionalText = setting(
        None, "an SQL connection; the default of `outbox` under `[kafka]` and of `ledger` under `[spark]`", "shop"
    )
    retention: Seconds = setting(365 * 86_400.0, "how long the row of a saga that has ended is kept", "90d")


class LockSettings(Table):
    """The place of semantic locks, if it is not the ledger."""

    heading = "locks"
    summary = "For projects whose sagas have [`locks`](../how-to/locks.md)."

    connection: OptionalText = setting(
        None,
        "the SQL connection that stores the locks; all sagas that share keys must use the same database. Default: "
        "`connection` of `[ledger]`",
        "shop",
    )
