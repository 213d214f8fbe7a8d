"""Tracebacks of an author's functions, without the frames of the engine, of Python and of libraries."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from types import TracebackType

_ENGINE = frozenset({"sagas", "saga_activities", "saga_spark", "saga_workers", "saga_cli"})
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})

_TRACEBACK, _CAUSE, _CONTEXT = (
    BaseException.__dict__[name].__get__ for name in ("__traceback__", "__cause__", "__context__")
)


def keep_own_frames(error: BaseException, *, package: str = "") -> None:
    """Leave only the author's frames in the tracebacks of an error and of those that caused it.

    ``package``: that of the author, whose frames count even if it is installed like a library.
    """
    seen: set[int] = set()
    errors: list[BaseException | None] = [error]
    while errors:
        each = errors.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            # A class of the author may refuse to have them assigned, or hide them.
            BaseException.with_traceback(each, _own(_TRACEBACK(each), package))
            errors += [_CAUSE(each), _CONTEXT(each)]


_PLACE = "_saga_place"
_MAX_PLACE = 200


def note_place(error: BaseException) -> None:
    """Keep the file and the line of the innermost frame, of an error of which only the author's frames are left."""
    traceback = _TRACEBACK(error)
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return
    path = Path(traceback.tb_frame.f_code.co_filename)
    folder = Path(os.getcwd())  # nobody needs the path of the machine
    shown = path.relative_to(folder) if path.is_relative_to(folder) else Path(*path.parts[-2:])
    place = f"{str(shown)[-_MAX_PLACE:]}:{traceback.tb_lineno}"
    setattr(error, _PLACE, place)


def noted_place(error: BaseException) -> str | None:
    """The place in the author's files that raised an error, `shop/actions.py:42`; None if nothing has noted it."""
    return getattr(error, _PLACE, None)


def _own(traceback: TracebackType | None, package: str) -> TracebackType | None:
    own = []
    while traceback is not None:
        frame = traceback.tb_frame
        names = frame.f_globals
        # A program that was started with `python -m` calls itself `__main__`.
        name = names.get("__package__") if names.get("__name__") == "__main__" else names.get("__name__")
        module = str(name).partition(".")[0]
        is_library = module in _ENGINE or frame.f_code.co_filename.startswith(("<", *_LIBRARIES))
        if module == package or not is_library:
            own.append(traceback)
        traceback = traceback.tb_next
    kept: TracebackType | None = None
    for each in reversed(own):
        kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return kept
