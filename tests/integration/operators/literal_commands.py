"""How each command that texts of the product name is run in the tests."""

from __future__ import annotations

LOOKED = {
    "actions": ["actions"],
    "batch list": ["batch", "list"],
    "doctor": ["doctor"],
    "explain": ["explain", "waiting"],
    "explain --isolation": ["explain", "waiting", "--isolation"],
    "graph": ["graph", "waiting"],
    "list": ["list"],
    "list --stuck": ["list", "--stuck"],
    "locks": ["locks"],
    "parked": ["parked"],
    "participant test --help": ["participant", "test", "--help"],
    "relay --status": ["relay", "--status"],
    "schema": ["schema"],
    "schema --with-actions": ["schema", "--with-actions"],
    "setup --print": ["setup", "--print"],
    "simulate": ["simulate", "waiting"],
    "start --help": ["start", "--help"],
    "cancel --help": ["cancel", "--help"],
    "pause --help": ["pause", "--help"],
    "resume --help": ["resume", "--help"],
    "validate": ["validate"],
    "validate --format": ["validate", "--format", "sarif"],
    "show": ["show", "ID"],
}
"""Commands that change nothing, as they are run in the project of all states. ``ID``: a parked saga."""

CLI, DEV = "tests/integration/cli", "tests/integration/dev"

RUN_ELSEWHERE = {
    "backfill": "tests/integration/schedules/test_commands.py",
    "schedule": "tests/integration/schedules/test_commands.py",
    "schedule list": "tests/integration/schedules/test_commands.py",
    "schedule run": "tests/integration/schedules/test_commands.py",
    "schedule show": "tests/integration/schedules/test_commands.py",
    "setup --yes": "tests/integration/schedules/test_setup.py",
    "batch cancel": f"{CLI}/test_batch.py",
    "batch show": f"{CLI}/test_batch.py",
    "cancel": f"{CLI}/test_operator_commands.py",
    "demo": "tests/integration/demo/test_demo.py",
    "dev down": f"{DEV}/test_dev_stack.py",
    "dev down --wipe": f"{DEV}/test_dev_stack.py",
    "dev logs": f"{DEV}/test_dev_stack.py",
    "dev psql": f"{DEV}/test_dev_stack.py",
    "dev restart": f"{DEV}/test_dev_stack.py",
    "dev up": f"{DEV}/test_dev_stack.py",
    "diff": "tests/unit/cli/test_diff.py",
    "init": "tests/unit/cli/test_new_project.py",
    "notify": f"{CLI}/test_notification_commands.py",
    "notify --again": f"{CLI}/test_notification_commands.py",
    "participant test": "tests/integration/participant/test_http_participants.py",
    "pause": "tests/integration/operators/states.py",
    "reconcile": "tests/integration/operators/test_operator_reconciliation.py",
    "reconcile --repair": "tests/integration/operators/test_operator_reconciliation.py",
    "relay": "tests/integration/messaging/relay/test_relay_process.py",
    "resolve": f"{CLI}/test_operator_commands.py",
    "resolve --definition": f"{CLI}/test_operator_commands.py",
    "resolve --definition --reason --with": f"{CLI}/test_operator_commands.py",
    "resolve --evidence --reason --result": f"{CLI}/test_operator_commands.py",
    "resolve --reason --where": f"{CLI}/test_operator_commands.py",
    "resume": "tests/integration/operators/test_operator_advice.py",
    "serve": "tests/integration/serve/test_serve.py",
    "setup": "tests/integration/messaging/kafka/test_kafka_doctor.py",
    "signal": f"{CLI}/test_operator_commands.py",
    "start": f"{CLI}/test_start_and_show.py",
    "start --again": f"{CLI}/test_start_and_show.py",
    "start --again --from": f"{CLI}/test_batch.py",
    "start --bulk --from": "tests/integration/bulk/test_bulk_from_file.py",
    "start --from": f"{CLI}/test_start_many.py",
    "trigger": "tests/integration/operators/test_reader_states.py",
    "trigger --from": "tests/integration/operators/test_reader_states.py",
    "undo": f"{CLI}/test_operator_commands.py",
    "watch": f"{CLI}/test_start_and_show.py",
    "worker": f"{CLI}/test_cancel_without_worker.py",
}
"""The tests that run the others: where the state that they are named for can be made."""

NOT_RUN = {
    "batch": "names the group of commands",
    "dev": "names the group of commands",
    "participant": "names the group of commands",
    "open": "opens a browser",
}
"""Commands that no test runs, with the reason."""
