"""Custom workers as files that a user writes and runs: their own workflow next to the sagas of a project."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.helpers.processes import TemporalServer

IMPORTS = """
import asyncio
import json
import os
import sys
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker
"""

ACTIONS = """
from temporalio import activity

from sagas import Step, action


@action("reserve")
async def reserve(step: Step, sku: str) -> dict:
    return {"reserved": sku}


@action("release")
async def release(step: Step, sku: str) -> None:
    return None


@activity.defn
async def greet(name: str) -> str:
    return f"hello {name}"
"""

WORKFLOW = """
@workflow.defn
class Greeting:
    @workflow.run
    async def run(self, name: str) -> str:
        return await workflow.execute_activity(greet, name, start_to_close_timeout=timedelta(seconds=60))
"""

MAIN = """
async def main(address, queue):
    client = await Client.connect(address, plugins=[SagaPlugin()])
    async with Worker(client, task_queue=queue, workflows=[Greeting], activities=[greet]):
        greeting = await client.execute_workflow(Greeting.run, "ada", id=f"greeting-{queue}", task_queue=queue)
        order = await client.execute_workflow("order", {}, id=f"order-{queue}", task_queue=queue)
    print(json.dumps([greeting, order]))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
    sys.stdout.flush()
    os._exit(0)  # the SDK's threads can crash an interpreter that winds down (temporalio/sdk-python#300)
"""

ORDER = """
saga: order
input: {properties: {card: {$ref: "#card"}}, $defs: {c: {$anchor: card, x-sensitive: true}}}
steps:
  - {id: hold, uses: reserve, with: {sku: pear}, compensate: release}
output: "${{ steps.hold.result.reserved }}"
"""

OWN_RUNNER = """
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

import rules
from sagas import SagaPlugin


@workflow.defn
class Mark:
    @workflow.run
    async def run(self) -> str:
        return rules.MARK


async def main(address, queue):
    client = await Client.connect(address, plugins=[SagaPlugin()])
    own = SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules("rules"))
    async with Worker(client, task_queue=queue, workflows=[Mark], workflow_runner=own):
        mark = await client.execute_workflow(Mark.run, id=f"mark-{queue}", task_queue=queue)
        order = await client.execute_workflow("order", {}, id=f"order-{queue}", task_queue=queue)
    print(json.dumps([mark == rules.MARK, order]))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
    sys.stdout.flush()
    os._exit(0)  # the SDK's threads can crash an interpreter that winds down (temporalio/sdk-python#300)
"""


def run(folder: Path, actions: str, files: dict[str, str], address: str) -> subprocess.CompletedProcess[str]:
    """Run ``worker.py`` of a project whose actions are in the file ``actions``."""
    (folder / "saga.toml").write_text(f'definitions = ["."]\nactions = ["./{actions}"]\n')
    (folder / "order.saga.yaml").write_text(ORDER)
    for name, text in files.items():
        (folder / name).write_text(text)
    argv = [sys.executable, "worker.py", address, f"own-{uuid.uuid4().hex[:8]}"]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def printed(done: subprocess.CompletedProcess[str]) -> list[object]:
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    return json.loads(done.stdout)


def test_a_worker_in_one_file(temporal: TemporalServer, tmp_path: Path) -> None:
    text = f"{IMPORTS}\nfrom sagas import SagaPlugin\n{ACTIONS}\n{WORKFLOW}\n{MAIN}"
    assert printed(run(tmp_path, "worker.py", {"worker.py": text}, temporal.address)) == ["hello ada", "pear"]


@pytest.mark.slow
def test_a_file_with_plugin_client_and_workflow(temporal: TemporalServer, tmp_path: Path) -> None:
    plugin = "from sagas import Client as SagaClient, SagaPlugin as Plugin\nPLUGIN = Plugin()\n"
    main = MAIN.replace("SagaPlugin()", "PLUGIN")
    text = f"{IMPORTS}\n{plugin}\n{ACTIONS}\n{WORKFLOW}\n{main}"
    assert printed(run(tmp_path, "worker.py", {"worker.py": text}, temporal.address)) == ["hello ada", "pear"]


@pytest.mark.slow
def test_a_worker_in_two_files(temporal: TemporalServer, tmp_path: Path) -> None:
    files = {
        "shop.py": f"{IMPORTS}\nfrom sagas import SagaPlugin\n{ACTIONS}\n{WORKFLOW}",
        "worker.py": f"{IMPORTS}\nfrom sagas import SagaPlugin\nfrom shop import Greeting, greet\n{MAIN}",
    }
    assert printed(run(tmp_path, "shop.py", files, temporal.address)) == ["hello ada", "pear"]


def test_a_custom_workflow_runner_keeps_its_settings(temporal: TemporalServer, tmp_path: Path) -> None:
    files = {
        "shop.py": ACTIONS,
        "rules.py": "import uuid\nMARK = str(uuid.uuid4())  # another one with every import\n",
        "worker.py": f"{IMPORTS}\n{OWN_RUNNER}",
    }
    assert printed(run(tmp_path, "shop.py", files, temporal.address)) == [True, "pear"]


@pytest.mark.slow
def test_a_module_called_activities(temporal: TemporalServer, tmp_path: Path) -> None:
    files = {
        "activities.py": ACTIONS,
        "worker.py": f"{IMPORTS}\nfrom activities import greet\nfrom sagas import SagaPlugin\n{WORKFLOW}\n{MAIN}",
    }
    assert printed(run(tmp_path, "activities.py", files, temporal.address)) == ["hello ada", "pear"]
