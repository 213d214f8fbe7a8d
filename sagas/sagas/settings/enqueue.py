"""``[enqueue]`` of saga.toml: the databases from whose transactions sagas are started and signalled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from sagas.settings.forms import NAMED_TEXTS, Seconds, Texts, one_of
from sagas.settings.table import Table, setting


class EnqueueSettings(Table):
    """The databases with a table ``saga_enqueued``, and which process delivers its rows. ``bulk_wait`` is in
    seconds.
    """

    heading = "enqueue"
    summary = (
        "For applications that [start and signal sagas in their own transactions]"
        "(../how-to/start-from-your-transaction.md)."
    )

    connections: Texts = setting(
        (),
        "the SQL connections whose databases have the table `saga_enqueued`; who may insert there may start and "
        "signal every saga of the project, unless `sagas` names those of the connection",
        ["shop"],
    )
    sagas: Annotated[Mapping[str, tuple[str, ...]], NAMED_TEXTS] = setting(
        {},
        "the sagas that the rows of a connection may start and signal; not named here: every saga",
        {"shop": ["checkout"]},
    )
    delivered_by: Annotated[Literal["relay", "worker"], one_of("relay", "worker")] = setting(
        "relay", "the process that delivers the rows: `relay`, which needs no Kafka for this, or `worker`"
    )
    bulk_wait: Seconds = setting(
        0.0,
        "starts of a saga that are delivered while others are under way share a workflow, which begins when those "
        "have ended, and at the latest after this time, up to 1s; needs a ledger. 0s: each start has a workflow of "
        "its own",
        "250ms",
    )
