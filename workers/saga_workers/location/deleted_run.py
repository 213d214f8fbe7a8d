"""A saga whose run Temporal has deleted before it was over."""

from __future__ import annotations

from dataclasses import dataclass

from sagas.text.shell import saga_command

RUN_DELETED = "Temporal has no run of it any more"


@dataclass(frozen=True, slots=True)
class DeletedRun:
    """A saga without a run; ``holds`` is what it has in the databases, in words. ``saga``: its name, if known."""

    saga_id: str
    holds: tuple[str, ...]
    saga: str | None = None

    @property
    def sentence(self) -> str:
        return f"{RUN_DELETED}, and it has {'; '.join(self.holds)}"

    @property
    def reason(self) -> str:
        return f"{self.sentence}: start it again with `{self.command}`, then cancel it or let it go on"

    @property
    def command(self) -> str:
        return saga_command("resume", self.saga_id)
