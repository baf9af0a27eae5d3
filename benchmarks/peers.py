"""Recovery against everything else one could pick, side by side in one run; and ReLU networks against an extractor.

    python benchmarks/peers.py --set-up          # once: the peers, in an environment of their own
    OMP_NUM_THREADS=1 python benchmarks/peers.py --quick --out peers.md
    OMP_NUM_THREADS=1 python benchmarks/peers.py --out peers.md

Peers are R's `ppr` (Debian: r-base-core), `projection-pursuit`, distillation in PyTorch, and ICA, dictionary learning
and a sparse autoencoder on gradients. Each is told n, gets the number of queries and the seconds given here for every
setting tried, and is shown with the setting that did best by the truth. With `--pilot` the setting is chosen in short
runs instead; with `--longest` a peer that is near half of the directions has more time. Ridgescope is told nothing.
Limits are in processor time on one thread; wall times are those of whole processes, to be compared within one run only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import venv
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from heatmap import Cell, Panel, heat_map
from peers.contest import OURS, PEERS, Contestant, Entry, Terms, contest
from ridgescope.bench import keep_table
from ridgescope.targets import CASES

ROOT = Path(__file__).parent.parent
PLACE = ROOT / "out" / "peers"
PACKAGES = ("numpy", "scipy", "scikit-learn", "projection-pursuit", "torch==2.13.0")

TRAINED = ("diabetes:relu", "diabetes:tanh", "cancer:relu", "cancer:tanh", "digits:relu", "digits:tanh")
"""Networks that nobody planted, by data and activation; those of the digits have ten outputs."""
QUICK = ("small", "mixed", "diabetes:tanh")
NETWORKS = {
    (20, 10): 14_000,
    (10, 15): 20_000,
    (20, 40): 67_000,
    (20, 100): 159_000,
    (30, 200): 532_000,
    (10, 30): None,
    (10, 50): None,
}
"""(d, n) of ReLU networks with one output, and the published queries of an extractor for ReLU networks only."""

HEADER = (
    "| case | method | n told | ≤ 1e-1 | ≤ 1e-2 | ≤ 1e-3 rad | false | sup | RMS | sup on rays | queries | CPU s "
    "| CPU / ours | wall s | settings tried | remark |\n" + "|---" * 16 + "|"
)
BEST_HEADER = (
    "| case | ours ≤ 1e-2, 1e-3 rad | best peer | its ≤ 1e-2, 1e-3 rad | its false | queries, peer / ours "
    "| CPU, peer / ours | sup, peer / ours | sup on rays, peer / ours |\n" + "|---" * 9 + "|"
)
NETWORK_HEADER = (
    "| network | seed | queries | queries of the ReLU-only extractor | ratio | worst angle (rad) | within 1e-3 rad "
    "| false | sup on rays | CPU s | remark |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


def set_up(place: Path) -> None:
    """The peers' own environment; they are no dependency of the project."""
    venv.create(place, with_pip=True)
    subprocess.run([str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    print(f"installed {', '.join(PACKAGES)} into {place}")
    print("for R's ppr: apt-get install --no-install-recommends r-base-core")


def described(name: str, seed: int) -> dict[str, Any]:
    """What draws a standard case, or names a trained network."""
    if ":" in name:
        return {"network": name}
    case = CASES[name]
    return {"dim": case.dim, "features": case.features, "kinds": case.kinds, "rng": seed, **case.options}


def said(terms: Terms) -> str:
    """The peers' limits in words."""
    told = f"{terms.queries:,} queries and {terms.seconds:g} s of processor time"
    if terms.pilot:
        told += f" for the setting that is best in {terms.pilot:g} s with {terms.queries // 10:,} queries"
    else:
        told += " for each setting tried"
    if terms.longest > terms.seconds:
        told += f", {terms.longest:g} s where half of the directions are within 1e-1 rad by then"
    return told


def row(entries: Sequence[Entry], ours: Sequence[Entry]) -> str:
    """Means over the seeds for shares, the largest error, all false directions; times beside those of `auto`."""
    first, done = entries[0], [e for e in entries if e.score is not None]
    remark = "; ".join(sorted({e.note for e in entries if e.note}))
    if not done:
        times = (_mean(entries, "seconds"), "—", _mean(entries, "wall"))
        return _line(first.case, first.contestant, _yes(first.told), *["—"] * 8, *times, first.tried, remark)
    scores = [e.score for e in done if e.score is not None]
    return _line(
        first.case,
        first.contestant,
        _yes(first.told),
        *(_percent([getattr(s, name) for s in scores]) for name in ("within_1", "within_2", "within_3")),
        sum(s.false for s in scores),
        *(_largest([getattr(s, name) for s in scores]) for name in ("sup", "rms", "rays")),
        f"{np.mean([e.queries for e in done]):,.0f}",
        _mean(done, "seconds"),
        _times(np.mean([e.seconds for e in done]), np.mean([e.seconds for e in ours])),
        _mean(done, "wall"),
        first.tried,
        remark,
    )


def best_row(case: str, entries: Sequence[Entry]) -> str:
    """Ours beside the peer that does best, by the truth, on the first seed."""
    shown = [(e, e.score) for e in entries if e.case == case and e.shown and e.score is not None]
    first = {e.contestant: (e, score) for e, score in reversed(shown)}
    peers = [first[who.name] for who in PEERS if who.name in first]
    if not peers or OURS[0].name not in first:
        return _line(case, *["—"] * 8)
    ours, s = first[OURS[0].name]
    best, t = max(peers, key=lambda told: told[1].rank)
    ratios = [(best.queries, ours.queries), (best.seconds, ours.seconds), (t.sup, s.sup), (t.rays, s.rays)]
    shares = [", ".join(_percent([share]) for share in (x.within_2, x.within_3)) for x in (s, t)]
    return _line(case, shares[0], best.contestant, shares[1], t.false, *(_times(a, b) for a, b in ratios))


def network_row(entry: Entry, published: int | None) -> str:
    size = entry.case
    known = "no complete model" if published is None else f"{published:,}"
    if entry.score is None:
        return _line(size, entry.seed, "—", known, *["—"] * 5, f"{entry.seconds:.0f}", entry.note)
    s = entry.score
    return _line(
        size,
        entry.seed,
        f"{entry.queries:,}",
        known,
        "—" if published is None else f"{entry.queries / published:.2f}",
        f"{s.worst:.1e}",
        _percent([s.within_3]),
        s.false,
        _largest([s.rays]),
        f"{entry.seconds:.0f}",
        entry.note,
    )


def _line(*cells: object) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _mean(entries: Sequence[Entry], name: str) -> str:
    return f"{np.mean([getattr(e, name) for e in entries]):.1f}"


def _times(theirs: float | None, ours: float | None) -> str:
    if theirs is None or not ours:
        return "—"
    return f"{theirs / ours:,.0f}" if theirs >= 10.0 * ours else f"{theirs / ours:.2g}"


def _yes(told: bool) -> str:
    return "yes" if told else "no"


def _percent(shares: Sequence[float]) -> str:
    """Rounded down, so that 100 % means all of them."""
    return f"{np.floor(1000.0 * np.mean(shares) + 1e-6) / 10.0:g} %"


def _largest(errors: Sequence[float | None]) -> str:
    known = [e for e in errors if e is not None]
    return f"{max(known):.1e}" if known else "—"


def picture(entries: Sequence[Entry]) -> str:
    """Who finds what: a heat map of contestants and cases."""
    short = {who.name: who.short for who in (*OURS, *PEERS)}
    known = [e for e in entries if e.score is not None and e.contestant in short]
    cells = {}
    for e in known:
        scores = [o.score for o in known if (o.case, o.contestant) == (e.case, e.contestant) and o.score is not None]
        false = sum(s.false for s in scores)
        share = float(np.mean([s.within_2 for s in scores]))
        cells[e.case, short[e.contestant]] = Cell(share, notes=(f"{false} false",) if false else ())
    cases = list(dict.fromkeys(e.case for e in known))
    panel = Panel("told n, but for the first three, which are told nothing", "", cells)
    return heat_map(
        "Directions found, ours and everything else one could pick",
        "method",
        "",
        [who.short for who in (*OURS, *PEERS)],
        cases,
        [panel],
        "Share of the true directions found within 0.01 rad, rounded down; false: near none. – no answer, or not run.",
        left=120,
    )


class Kept:
    """Prints each line and, with `out`, keeps the tables and every single run up to date on disk.

    What `out` has from before is not run again, so that a benchmark of hours can be interrupted, or have cases added.
    """

    def __init__(self, out: Path | None) -> None:
        self.out, self.lines, self.entries = out, list[str](), list[Entry]()
        runs = None if out is None else out.with_suffix(".json")
        if runs is not None and runs.exists():
            self.entries += [Entry.read(told) for told in json.loads(runs.read_text(encoding="utf-8"))]

    def tell(self, line: str) -> None:
        print(line, flush=True)
        self.lines.append(line)
        if self.out is not None:
            keep_table(self.out, self.lines, [e.kept() for e in self.entries])
            drawn = picture([e for e in self.entries if e.shown])
            self.out.with_suffix(".svg").write_text(drawn, encoding="utf-8")

    def shown(self, name: str, contestant: str, seed: int) -> Entry | None:
        """A run from before."""
        same = (e for e in self.entries if (e.case, e.contestant, e.seed) == (name, contestant, seed) and e.shown)
        return next(same, None)


def against_peers(kept: Kept, cases: Sequence[str], seeds: int, ours: Terms, theirs: Terms, jobs: int) -> None:
    def held(name: str, who: Contestant, seed: int) -> list[Entry]:
        before = kept.shown(name, who.name, seed)
        return [before] if before else contest(who, name, described(name, seed), ours if who in OURS else theirs)

    kept.tell(HEADER)
    with ThreadPoolExecutor(jobs) as pool:
        some = {name: [1000 + k for k in range(seeds)] if name in CASES else [0] for name in cases}
        waiting = {
            (name, who.name): [pool.submit(held, name, who, seed) for seed in some[name]]
            for name in cases
            for who in (*OURS, *PEERS)
        }
        for name, contestant in waiting:
            runs = [run for told in waiting[name, contestant] for run in told.result()]
            kept.entries += [run for run in runs if run not in kept.entries]
            first = [run for told in waiting[name, OURS[0].name] for run in told.result() if run.shown]
            kept.tell(row([run for run in runs if run.shown], first))


def networks(kept: Kept, sizes: Sequence[tuple[int, int]], seeds: int, seconds: float) -> None:
    kept.tell(NETWORK_HEADER)
    ours: Contestant = OURS[0]
    for d, n in sizes:
        for seed in range(1000, 1000 + seeds):
            target = {"dim": d, "features": n, "kinds": "relu", "rng": seed}
            (told,) = contest(ours, f"{d}-{n}-1", target, Terms(seconds))
            kept.entries.append(told)
            kept.tell(network_row(told, NETWORKS[d, n]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set-up", action="store_true", help=f"install the peers into {PLACE.relative_to(ROOT)}")
    parser.add_argument("--quick", action="store_true", help="three cases, one seed, one setting each, five seconds")
    parser.add_argument("--only", choices=("peers", "networks"), default=None)
    parser.add_argument("--cases", default=None, help=f"comma-separated, of {', '.join((*CASES, *TRAINED))}")
    parser.add_argument("--networks", default=None, help="comma-separated sizes such as 20-10,10-15")
    parser.add_argument("--seeds", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=None, help="processor time for each setting of a peer")
    parser.add_argument("--limit", type=float, default=None, help="for each run of ours")
    parser.add_argument("--queries", type=int, default=None, help="for each setting of a peer")
    parser.add_argument("--tries", type=int, default=None, help="only the first few settings of each peer")
    parser.add_argument("--pilot", type=float, default=None, help="seconds of the runs in which a setting is chosen")
    parser.add_argument("--longest", type=float, default=None, help="seconds for a peer near half of the directions")
    parser.add_argument("--jobs", type=int, default=1, help="contestants at once, one thread each")
    parser.add_argument("--python", default=str(PLACE / "bin" / "python"), help="the peers' interpreter")
    parser.add_argument("--out", type=Path, default=None, help="Markdown file; JSON goes beside it")
    a = parser.parse_args()
    if a.set_up:
        return set_up(PLACE)
    cases = a.cases.split(",") if a.cases else QUICK if a.quick else (*CASES, *TRAINED)
    quick_sizes = [(20, 10), (10, 15)]
    sizes = [tuple(map(int, s.split("-")[:2])) for s in a.networks.split(",")] if a.networks else None
    kept, limit = Kept(a.out), a.limit or (40.0 if a.quick else 1800.0)
    if a.only != "networks":
        theirs = Terms(
            seconds=a.seconds or (5.0 if a.quick else 300.0),
            queries=a.queries or (20_000 if a.quick else 200_000),
            python=a.python,
            tries=a.tries or (1 if a.quick else None),
            pilot=a.pilot,
            longest=a.longest or 0.0,
        )
        kept.tell(f"Peers: {said(theirs)}; ours: {limit:g} s.\n")
        against_peers(kept, cases, a.seeds or (1 if a.quick else 3), Terms(limit), theirs, a.jobs)
        kept.tell(f"\n{BEST_HEADER}")
        for name in cases:
            kept.tell(best_row(name, kept.entries))
        kept.tell("")
    if a.only != "peers":
        networks(kept, sizes or (quick_sizes if a.quick else list(NETWORKS)), 1, limit)
    return None


if __name__ == "__main__":
    main()
