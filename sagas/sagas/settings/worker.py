"""``[worker]`` of saga.toml: the definitions that workers run, the keys that sign others, and the worker's cache."""

from __future__ import annotations

from typing import Annotated, Literal

from sagas.settings.forms import Flag, TextOrSecret, count, one_of
from sagas.settings.table import Table, setting


class WorkerSettings(Table):
    """The definitions that workers run: those of the project and ``signed`` ones, or ``any``."""

    heading = "worker"
    summary = "Which definitions a worker runs, see [definitions](../explanation/security.md#definitions)."

    definition_key: TextOrSecret = setting(
        None,
        "the key of the project, at least 32 characters: clients sign with it what workers run. Several keys are "
        "separated by white space: the first one signs, all of them verify. Default: the key file "
        "`.saga/definition.key`, which the first command makes that needs it",
        {"env": "SAGA_DEFINITION_KEY"},
        repr=False,
    )
    accept: Annotated[Literal["signed", "any"], one_of("signed", "any")] = setting(
        "signed",
        "`signed`: the definitions of the project, and starts of others that its key has signed; `any`: whatever a "
        "client of Temporal sends",
    )
    schedules: Flag = setting(
        False,
        "true: a worker creates and updates the [schedules](../how-to/schedule-sagas.md) of its definitions when it "
        "starts, as `saga setup` does",
    )
    max_cached_workflows: Annotated[int, count(most=100_000)] = setting(
        1000,
        "how many workflows a worker keeps in memory while they wait (`max_cached_workflows` of Temporal's SDK). "
        "A workflow beyond them is replayed from its history when something happens to it",
    )
    max_cached_bytes: Annotated[int, count(most=1 << 40)] = setting(
        16 * 1024 * 1024,
        "the bytes of the inputs of these workflows. Beyond them the oldest workflow with a large input leaves memory. "
        "An input takes up to 45 times its size there",
    )
