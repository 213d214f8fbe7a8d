"""With `--json` standard output is the document and nothing else, whatever else there is to say."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.integration.cli.conftest import CommandLine, fresh

PRINTING = """
import logging
import warnings

print("hello from a module")
warnings.warn("a warning of a module")
logging.getLogger("shop").warning("a line of a log")
"""


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize(
    "args",
    [
        ("start", "order", "--id"),
        ("show",),
        *(pytest.param((command,), marks=pytest.mark.slow) for command in ("list", "actions", "validate")),
    ],
)
def test_json_output_is_the_only_stdout(cli_without_worker: CommandLine, args: tuple[str, ...]) -> None:
    """An input so large that the SDK of Temporal warns of it, and a module that prints while it is imported."""
    id = fresh("large")
    actions = cli_without_worker.folder / "actions.py"
    actions.write_text(PRINTING + actions.read_text())
    large = cli_without_worker.folder / "large.json"
    large.write_text(json.dumps({"number": id, "padding": "x" * 700_000}))
    begin = ("start", "order", "--id", id, "--input", f"@{large}")
    if args[0] == "show":
        run(cli_without_worker, *begin)
        args = ("show", id)
    done = run(cli_without_worker, *(begin if args[0] == "start" else args))
    json.loads(done.stdout)
    if args[0] in ("start", "actions", "validate"):
        assert "hello from a module" in done.stderr


def run(cli: CommandLine, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-P", "-m", "saga_cli.main", "--config", str(cli.folder / "saga.toml"), "--json", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done
    return done
