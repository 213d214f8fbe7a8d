"""The benchmark's sagas as YAML: a straight list of equal steps, of each kind of activity."""

from __future__ import annotations

KINDS = ("noop", "guarded", "local")


def definition(kind: str, steps: int) -> str:
    """A saga ``<kind>-<steps>`` that does and can undo the same thing ``steps`` times."""
    action, undo = ("bench.noop", "bench.noop") if kind == "noop" else ("bench.debit", "bench.credit")
    lines = [
        f"saga: {kind}-{steps}",
        "defaults: {timeout: 5s" + (", execution: local}" if kind == "local" else "}"),
        "steps:",
    ]
    for number in range(steps):
        lines += [
            f"  - id: step{number}",
            f"    uses: {action}",
            '    with: {account: "${{ input.account }}", amount: "${{ input.amount }}"}',
            f"    compensate: {undo}",
        ]
    lines.append(f'output: "${{{{ steps.step{steps - 1}.result }}}}"')
    return "\n".join(lines) + "\n"
