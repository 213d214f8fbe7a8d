"""The flags of Temporal's Python SDK for its workflow logic: which ones the runs of a worker begin with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest.mock import patch

from temporalio.worker import _workflow
from temporalio.worker._workflow_instance import _WorkflowLogicFlag

SINGLE_BATCH = _WorkflowLogicFlag.PROCESS_WORKFLOW_ACTIVATION_JOBS_AS_SINGLE_BATCH
"""Off by default, until a later version of the SDK turns it on: all events of a workflow task are applied first."""


@contextlib.contextmanager
def default_flags(*flags: _WorkflowLogicFlag) -> Iterator[None]:
    """Workers that are made meanwhile turn on these flags for new workflow tasks."""
    with patch.object(_workflow, "_DEFAULT_ENABLED_WORKFLOW_LOGIC_FLAGS", frozenset(flags)):
        yield
