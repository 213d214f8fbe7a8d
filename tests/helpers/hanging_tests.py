"""The place where a test waits that takes too long."""

from __future__ import annotations

import asyncio
import gc


def task_stacks() -> str:
    """The stack of each asyncio task that has not ended: the stacks of threads, which pytest-timeout prints, end in the
    event loop."""
    # asyncio lists the tasks of a loop only; of loops there is no list.
    pending = [task for task in gc.get_objects() if isinstance(task, asyncio.Task) and not task.done()]
    return "\n".join(line for task in pending for line in (f"{task.get_name()}:", *_lines(task)))


def _lines(task: asyncio.Task[object]) -> list[str]:
    """One line for each coroutine of the task, the one that waits last; `Task.get_stack` has the first one only."""
    waiting, lines = task.get_coro(), []
    while (frame := getattr(waiting, "cr_frame", None)) is not None:
        lines.append(f"  {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}")
        waiting = getattr(waiting, "cr_await", None)
    return lines
