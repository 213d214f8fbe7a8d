"""The fault matrix itself."""

from __future__ import annotations

from tests.faults import plays_servers, plays_worker
from tests.faults.cells import FORWARD, Row

ROWS: tuple[Row, ...] = (
    Row("01", "worker-killed-before-start", plays_worker.killed_before_start, FORWARD, kills_flows=True),
    Row("02", "worker-killed-before-commit", plays_worker.killed_before_commit, FORWARD, split=False),
    Row("03", "worker-killed-after-effect", plays_worker.killed_after_effect, FORWARD, split=False),
    Row("08", "worker-killed-in-workflow-task", plays_worker.killed_in_workflow_task, FORWARD, kills_flows=True),
    Row("09", "temporal-killed", plays_servers.temporal_killed, FORWARD, split=False, own=frozenset({"temporal"})),
)
