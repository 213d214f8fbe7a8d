"""The result of a nested saga that closes as Completed: its output, with what its parent must know besides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.protocol.foreign_view import read_foreign_view
from sagas.protocol.messages import ChildState, Finish
from sagas.protocol.payloads import UNDO_SUFFIX
from sagas.protocol.saga_view import SagaView

_REPORT = "_saga"


def result_for_parent(output: Any, finish: Finish, document: Mapping[str, Any]) -> Any:
    """The result of a nested saga for its parent, see :func:`completed_child`.

    A parent learns the rest only from here: a signal, or the memo of a start, could be from any client.
    """
    report: dict[str, Any] = {}
    locks = document.get("row_locks")
    if (finish.state == "RESIDUE" and finish.committed) or (finish.state == "COMPLETED" and locks):
        report = {name: document[name] for name in ("state", "phase", "committed_at", "residue")}
        if locks:
            report["row_locks"] = locks
    if not report and not (isinstance(output, dict) and _REPORT in output):
        return output
    return {_REPORT: report, "output": output}


def completed_child(result: Any, saga_id: str, saga: str) -> tuple[ChildState, SagaView]:
    """The state and the view of a nested saga that closed as Completed, from :func:`result_for_parent`.

    It may have a residue past its commit point, or rows that it has locked.
    """
    state = "COMPENSATED" if saga_id.endswith(UNDO_SUFFIX) else "COMPLETED"
    output, report = result, {}
    if isinstance(result, dict) and isinstance(result.get(_REPORT), dict):
        output, report = result.get("output"), result[_REPORT]
    document = {"state": state, **report, "id": saga_id, "saga": saga, "output": output}
    view = read_foreign_view(document, saga_id) or SagaView(id=saga_id, saga=saga, state=state, output=output)
    return state if view.state in ("COMPLETED", "COMPENSATED") else "RESIDUE", view
