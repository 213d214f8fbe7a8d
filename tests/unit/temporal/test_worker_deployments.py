"""The version of workers that is to be made current, by the polls that Temporal names."""

from __future__ import annotations

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.deployment.v1 import WorkerDeploymentOptions
from temporalio.api.enums.v1 import WorkerVersioningMode
from temporalio.api.taskqueue.v1 import PollerInfo
from temporalio.common import WorkerDeploymentVersion

from saga_workers.temporal.worker_deployments import polled_version


def poll(at: int, build: str = "") -> PollerInfo:
    versioned = WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED
    options = WorkerDeploymentOptions(deployment_name="shop", build_id=build, worker_versioning_mode=versioned)
    return PollerInfo(last_access_time=Timestamp(seconds=at), deployment_options=options if build else None)


@pytest.mark.parametrize(
    ("polls", "build"),
    [
        ([], None),
        ([poll(1_000)], None),
        ([poll(1_000, "1")], "1"),
        ([poll(1_000, "2"), poll(990, "1")], "2"),
        ([poll(1_000, "1"), poll(1_000)], None),
        ([poll(1_000, "1"), poll(940)], None),
        ([poll(1_000, "1"), poll(880)], "1"),
    ],
    ids=["none", "without", "one", "newest", "at once", "running", "ended"],
)
def test_only_workers_that_run_count(polls: list[PollerInfo], build: str | None) -> None:
    """Temporal names those of the last five minutes."""
    assert polled_version(polls) == (None if build is None else WorkerDeploymentVersion("shop", build))
