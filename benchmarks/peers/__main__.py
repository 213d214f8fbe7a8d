"""One saga on this engine, on other engines and without one: `python -m benchmarks.peers [--quick]`.

Three transactions on the same PostgreSQL, each with its guard or barrier row, take random amounts from random accounts;
8 % of the sagas are rejected and 0.5 % violate a constraint in their second step, and are compensated. The peers take
turns in each round, forward and backward alternately, and each has the machine for itself. After each turn the balances
are compared with what its sagas should have taken.
"""

from __future__ import annotations

import argparse
import os
import statistics
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field

from benchmarks.bulk import ACCOUNTS, REJECTED, VIOLATING
from benchmarks.no_engine import STEPS, payments
from benchmarks.peers.books import Mistakes, balances, mistakes
from benchmarks.peers.installation import Installation, install, nothing_installed, versions
from benchmarks.peers.peers import PEERS, Peer, SharedServers, make_project
from benchmarks.peers.processes import Program, RunAnswer
from benchmarks.starts import pids_of
from benchmarks.support.bench_stack import bench_stack

LINE = "{:<28}" + " {:>8}" * 8


@dataclass
class PeerFigures:
    """All rounds of one peer. ``alone``: latencies of one saga at a time; ``cpu``: seconds for each saga."""

    rates: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    mistakes: Mistakes = field(default_factory=Mistakes)


class PeersBench:
    """Gives the peers their turns."""

    def __init__(self, servers: SharedServers, concurrency: int) -> None:
        self._servers = servers
        self._concurrency = concurrency
        self._at_start = balances(servers.url)
        self._due = 0

    def turn(self, peer: Peer, figures: PeerFigures, count: int, alone: int) -> None:
        """Start the peer; a few sagas, which warm it up, some one at a time, then ``count`` in a crowd."""
        with peer.open(self._servers) as program:
            self._run(program, figures, self._concurrency * 2, self._concurrency)
            figures.alone += self._run(program, figures, alone, 1).latencies
            answer = self._run(program, figures, count, self._concurrency)
        figures.latencies += answer.latencies
        figures.rates.append(count / answer.seconds)
        figures.cpu.append(answer.cpu / count)

    def _run(self, program: Program, figures: PeerFigures, count: int, concurrency: int) -> RunAnswer:
        run = uuid.uuid4().hex
        todo = list(payments(run, count, ACCOUNTS, REJECTED, VIOLATING))
        self._due += sum(STEPS * payment.amount for payment in todo if payment.succeeds)
        before = balances(self._servers.url)
        answer = program.run(run, concurrency, [astuple(payment) for payment in todo])
        figures.mistakes += mistakes(before, balances(self._servers.url), todo, answer.succeeded)
        return answer

    def check_late_effects(self) -> None:
        """No peer has moved anything after its turn: all together have taken what they should."""
        taken = sum(self._at_start.values()) - sum(balances(self._servers.url).values())
        assert taken == self._due, (taken, self._due)


def measure(servers: SharedServers, chosen: Sequence[Peer], options: argparse.Namespace) -> dict[Peer, PeerFigures]:
    figures = {peer: PeerFigures() for peer in chosen}
    bench = PeersBench(servers, options.concurrency)
    for number in range(options.rounds):
        for peer, own in figures.items() if number % 2 == 0 else reversed(figures.items()):
            bench.turn(peer, own, options.count // 10 if peer.is_slow else options.count, options.alone)
            load = os.getloadavg()[0]
            print(f"round {number + 1}: {peer.name}, {own.rates[-1]:.0f} sagas/s, load {load:.1f}", flush=True)
    bench.check_late_effects()
    return figures


def print_figures(figures: Mapping[Peer, PeerFigures]) -> None:
    print(f"\n{'':<28} {'':>8} {'':>8} {'alone':>8} {'in a crowd':>17} {'CPU':>8} {'amounts':>17}")
    print(LINE.format("", "sagas/s", "spread", "p50 ms", "p50 ms", "p99 ms", "ms/saga", "lost", "doubled"))
    for peer, own in figures.items():
        rate = statistics.median(own.rates)
        cells = [f"{rate:.0f}", f"{(max(own.rates) - min(own.rates)) / rate:.0%}"]
        cells += [f"{quantile(own.alone, 0.5):.1f}", f"{quantile(own.latencies, 0.5):.0f}"]
        cells += [f"{quantile(own.latencies, 0.99):.0f}", f"{1000 * statistics.median(own.cpu):.2f}"]
        print(LINE.format(peer.name, *cells, own.mistakes.lost, own.mistakes.doubled))


def quantile(seconds: Sequence[float], part: float) -> float:
    """Milliseconds below which this part of the samples lies."""
    ordered = sorted(seconds)
    return 1000 * ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def choose(installed: Installation, only: Sequence[str]) -> list[Peer]:
    """The peers that can run here; says which cannot, and why."""
    chosen = []
    for peer in PEERS:
        if only and not any(word.lower() in peer.name.lower() for word in only):
            continue
        reasons = [installed.missing[part] for part in peer.needs if part in installed.missing]
        if reasons:
            print(f"left out: {peer.name}, because {reasons[0]}")
        else:
            chosen.append(peer)
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=4000, help="sagas of a turn; a tenth with a workflow for each")
    parser.add_argument("--alone", type=int, default=30, help="sagas of a turn that run one at a time")
    parser.add_argument("--concurrency", type=int, default=50, help="sagas at once")
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="the peers with this word in their name")
    parser.add_argument("--no-install", action="store_true", help="only the peers that need nothing from a registry")
    parser.add_argument("--quick", action="store_true", help="one short round, to check that it works")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.count, options.alone, options.concurrency = 1, 200, 3, 10
    installed = nothing_installed() if options.no_install else install()
    chosen = choose(installed, options.only)
    pinned = {name: version for kind in versions().values() for name, version in kind.items()}
    print("versions:", ", ".join(f"{name} {version}" for name, version in pinned.items()))
    with bench_stack(make_project, ("temporal", "postgres", "worker")) as (folder, stack):
        print(f"{options.rounds} rounds of {options.count} sagas, {options.concurrency} at once, one worker process")
        figures = measure(SharedServers(folder, pids_of(stack), installed), chosen, options)
    print_figures(figures)
    mistaken = [peer.name for peer, own in figures.items() if own.mistakes != Mistakes()]
    if mistaken:
        raise SystemExit(f"wrong outcomes or balances: {', '.join(mistaken)}")


if __name__ == "__main__":
    main()
