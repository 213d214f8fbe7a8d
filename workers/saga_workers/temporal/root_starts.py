"""The start of the root saga of a run, as :func:`sagas.protocol.origin.start_of` writes it, by which a saga and those
nested in it are told from others that have had the same ids. It is empty if nobody knows it.
"""

from __future__ import annotations

from contextlib import suppress

from temporalio.client import Client as Temporal

from saga_workers.temporal.saga_input import first_input
from saga_workers.temporal.temporal_runs import RunDescription, RunInfo
from sagas.protocol.locks import owner_id
from sagas.protocol.origin import start_of
from sagas.protocol.payloads import ROOT_START_MEMO, UNDO_SUFFIX, input_digest
from sagas.settings.signing_keys import SigningKeys
from sagas.workflow.json_payloads import UnreadableValue, read_payload


async def nested_root_start(run: RunInfo) -> str:
    """The start that the parent of a nested saga, or of its undo, has handed to this run; empty for another run."""
    value = None
    if ROOT_START_MEMO in run.raw.memo.fields:
        with suppress(UnreadableValue):
            value = read_payload(await run.memo_payload(ROOT_START_MEMO))
    return value if isinstance(value, str) else ""


async def root_start_of_run(temporal: Temporal, described: RunDescription, keys: SigningKeys | None) -> str:
    """The start of the root saga of the saga with this run. ``keys``: see
    :func:`saga_workers.temporal.saga_input.read_input`.
    """
    run = described.run
    if owner_id(run.id) != run.id.removesuffix(UNDO_SUFFIX):
        return await nested_root_start(run)
    input = await first_input(temporal, described, keys)
    return "" if input is None else start_of(run.workflow_type, input_digest(input))
