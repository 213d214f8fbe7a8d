"""A client that knows Temporal and nothing of this project: it starts a saga with its input and waits for the end.

``python plain_client.py ADDRESS --id ID --input '{"customer": "c-1", "points": 5}' [--workflow interop]``
prints one line of JSON: ``{"status": "completed", "result": …}``, or ``{"status": "failed", "type": …, "message": …,
"story": …}``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Start the workflow by its type name with one JSON payload, nothing else; wait for its end."""
    client = await Client.connect(options.address, namespace=options.namespace)
    handle = await client.start_workflow(
        options.workflow, json.loads(options.input), id=options.id, task_queue=options.task_queue
    )
    try:
        return {"status": "completed", "result": await handle.result()}
    except WorkflowFailureError as failure:
        cause = failure.cause
        if isinstance(cause, ApplicationError):
            story = cause.details[0] if cause.details else None
            return {"status": "failed", "type": cause.type, "message": cause.message, "story": story}
        status = "canceled" if isinstance(cause, CancelledError) else "terminated"
        return {"status": status, "message": str(cause)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--task-queue", default="sagas")
    parser.add_argument("--workflow", default="interop")
    parser.add_argument("--id", required=True)
    parser.add_argument("--input", required=True)
    print(json.dumps(asyncio.run(run(parser.parse_args()))), flush=True)
