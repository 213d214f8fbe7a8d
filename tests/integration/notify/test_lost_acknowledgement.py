"""The worker dies after the receiver has taken the notification and before Temporal has recorded it."""

from __future__ import annotations

import time
from pathlib import Path

from saga_workers.client import Client
from saga_workers.temporal.temporal_client import connect
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.payment_server import PaymentServer
from tests.helpers.processes import TemporalServer, WorkerProcess
from tests.helpers.waiting import until
from tests.integration.notify.conftest import SECRET, Receiver, notified, settled

TOML = """
actions = ["./actions.py"]
[temporal]
address = "{address}"
task_queue = "{queue}"
[connections.hook]
kind = "http"
url = "{url}"
signing_secret = {{env = "HOOK_SECRET"}}
"""
ACTIONS = """
from sagas import action

@action("work")
async def work() -> dict:
    return {}
"""
SAGA = """
saga: told
steps:
  - {id: a, uses: work, effect: none}
notify:
  - when: completed
    uses: http
    with: {connection: hook, path: /echo}
    timeout: 3s
    intervals: [100ms, 100ms, 1s, 1s, 5s, 5s]
"""


async def is_completed(client: Client, saga_id: str) -> bool:
    return (await client.show(saga_id))["state"] == "COMPLETED"


async def test_a_notification_is_redelivered_under_the_same_id(temporal: TemporalServer, tmp_path: Path) -> None:
    with PaymentServer() as server:
        receiver = Receiver(server)
        server.faults({"delay_before": 5})  # it has the request, and its response comes too late
        (tmp_path / "definitions").mkdir()
        (tmp_path / "definitions" / "told.saga.yaml").write_text(SAGA)
        (tmp_path / "actions.py").write_text(ACTIONS)
        queue = f"lost-{tmp_path.name}-{time.time_ns()}"
        (tmp_path / "saga.toml").write_text(TOML.format(address=temporal.address, queue=queue, url=server.url))
        worker = WorkerProcess("worker", tmp_path, env={"HOOK_SECRET": SECRET}).start()
        again = WorkerProcess("again", tmp_path, env={"HOOK_SECRET": SECRET})
        try:
            settings = load_settings(tmp_path)
            client = Client(await connect(settings), Project(settings))
            run = await client.start("told", {})
            await until(receiver.received)
            worker.kill()
            await until(lambda: is_completed(client, run.id), "the saga does not wait for its notification")
            again.start()
            story = await settled(client, run.id)
        finally:
            worker.kill()
            again.kill()
        [row] = story["notifications"]
        assert (story["state"], notified(story)) == ("COMPLETED", {"notify-0-completed": "DELIVERED"})
        assert [event["id"] for event in receiver.received()] == [row["event"]] * row["attempts"]
        assert row["attempts"] >= 2
