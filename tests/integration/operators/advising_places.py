"""The places of the source that compose a command as advice, and which commands each of them has composed."""

from __future__ import annotations

import contextlib
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType

import pytest

from sagas.text import shell

ROOT = Path(__file__).parents[3]
SCOPE = re.compile(r"\.?<\w+>")


@contextlib.contextmanager
def recorded_places(patch: pytest.MonkeyPatch) -> Iterator[Mapping[str, set[str]]]:
    """The commands that each place composes from now on."""
    composed: defaultdict[str, set[str]] = defaultdict(set)
    compose = shell.shell_command

    def recording(*words: str) -> str:
        command, frame = compose(*words), sys._getframe(1)
        if frame.f_code.co_name == "saga_command" and frame.f_back is not None:
            composed[_place(frame.f_back.f_code)].add(command)
        return command

    patch.setattr(shell, "shell_command", recording)
    yield composed


def _place(code: CodeType) -> str:
    file = Path(code.co_filename)
    inside = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
    return f"{inside}::{SCOPE.sub('', code.co_qualname)}"
