"""A worker whose deployment or build Temporal does not take ends at its start, as none of its polls would be served."""

from __future__ import annotations

import asyncio

import pytest
from temporalio.common import WorkerDeploymentVersion

from saga_workers.temporal.temporal_client import connect
from saga_workers.temporal.worker_deployments import check_version
from saga_workers.worker.worker_process import run_worker
from sagas.errors import UsageError
from tests.integration.engine.environment import Environment
from tests.integration.engine.test_lifecycle import PLAIN


@pytest.mark.parametrize(
    ("deployment", "build", "why"),
    [
        ("shop-1.0", "1", "cannot contain '.'"),
        ("shop:eu", "1", "cannot contain ':'"),
        ("__shop", "1", "cannot start with '__'"),
        ("shop", "__1", "cannot start with '__'"),
        ("s" * 600, "1", "larger than the maximum"),
        ("shop", "1" * 600, "larger than the maximum"),
    ],
)
async def test_a_version_that_temporal_does_not_take_is_refused(
    env: Environment, deployment: str, build: str, why: str
) -> None:
    async with env.serving(PLAIN):
        project = env.project
    assert project is not None
    with pytest.raises(UsageError, match=f"--deployment {deployment} --build-id {build}: .*{why}"):
        async with asyncio.timeout(20):
            await run_worker(project, deployment=WorkerDeploymentVersion(deployment, build))


async def test_a_version_that_does_not_exist_yet_is_taken(env: Environment) -> None:
    async with env.serving(PLAIN):
        project = env.project
    assert project is not None
    client = await connect(project.settings)
    await check_version(client, WorkerDeploymentVersion("shop 1", "2026-11-21.1:eu"))
