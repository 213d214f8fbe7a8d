"""``[worker]`` of saga.toml: the definitions that workers run, the keys that sign others, and the worker's cache."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal, Self

from pydantic import model_validator

from sagas.settings.forms import TEXTS, Flag, TextOrSecret, count, one_of
from sagas.settings.table import Table, setting
from sagas.settings.wrong_setting import WrongSetting


def _read_digests(written: Sequence[str]) -> tuple[str, ...]:
    for digest in written:
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
            raise WrongSetting("", f": {digest!r} is not the `digest` of a definition, which `saga show -o json` has")
    return tuple(dict.fromkeys(written))


class WorkerSettings(Table):
    """The definitions that workers run: those of the project, and signed ones unless ``accept`` is "project".

    ``earlier_definitions``: the digests of signed ones that run nevertheless.
    """

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
    accept: Annotated[Literal["signed", "project", "any"], one_of("signed", "project", "any")] = setting(
        "signed",
        "`signed`: the definitions of the project, and starts of others that its key has signed; `project`: those of "
        "the project as its files are now, and of `earlier_definitions`; `any`: whatever a client of Temporal sends",
        "project",
    )
    earlier_definitions: Annotated[tuple[str, ...], replace(TEXTS, read=_read_digests)] = setting(
        (),
        'with `accept = "project"`: the digests of definitions that clients with the key may still start, as '
        "`saga show -o json` has them",
        ["sha256:" + "0" * 64],
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

    @model_validator(mode="after")
    def _check_effect(self) -> Self:
        if self.earlier_definitions and self.accept != "project":
            raise WrongSetting("earlier_definitions", 'has no effect without `accept = "project"`')
        return self
