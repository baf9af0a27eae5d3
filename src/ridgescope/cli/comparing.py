"""`verify`, `stability` and `compare`: a result held against its function, its sisters, or known weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from . import common
from .common import CERTIFIED, NOT_MET, aside, console, load_result, speaking_plainly, stdout_kept_clean
from .options import Asking, Searching, grouped
from .telling import exit_code, jsonable, plain_table, print_json, summary


@grouped
def verify(
    result: common.Saved,
    target: common.Target,
    asking: Asking,
    tolerance: Annotated[float | None, typer.Option(help="Another tolerance than the result's.")] = None,
    queries: Annotated[
        int | None, typer.Option(parser=common.whole, metavar="COUNT", help="Ask so often; else as a run would.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Another seed asks other questions.")] = 1,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Save the result with its new certificate here.")
    ] = None,
    as_json: common.Json = False,
) -> None:
    """Hold a saved result against its function again, with fresh queries.

    Exit code 0 when the tolerance is met, 3 when it is not.

    Examples:

      ridgescope verify result mymodel:logits

      ridgescope verify result model.onnx --queries 1e5 --tolerance 0.001
    """
    with speaking_plainly():
        with stdout_kept_clean(), common.executor(target, asking) as executor:
            from ..verify import verify as check

            found = load_result(result)
            seed_of_case = int(found.seed) if found.seed.isdigit() else 0
            _, oracle = common.open_oracle(target, found.dim, seed_of_case, asking)
            again = check(found, oracle, tolerance=tolerance, queries=queries, executor=executor, rng=seed)
        if as_json:
            print_json(summary(again))
        else:
            style = "green" if again.certificate.met else "yellow"
            console(stderr=False).print(again.certificate.sentence, style=style, highlight=False)
        if out is not None:
            aside(f"saved in {again.save(out)}")
        raise typer.Exit(exit_code(again))


@grouped
def stability(
    target: common.Target,
    search: Searching,
    asking: Asking,
    dim: common.Dim = None,
    seeds: Annotated[int, typer.Option(min=2, help="Runs, with the seeds 0, 1, 2, …")] = 3,
    within: common.Within = 0.1,
    case_seed: Annotated[int, typer.Option(min=0, help="Which target of a standard case to draw.")] = 0,
    as_json: common.Json = False,
) -> None:
    """Extract the same function under several seeds: which features does every run find, and to what angle?

    Exit code 0 when every feature is found by every run and all are certified, else 3.

    Examples:

      ridgescope stability case:small --seeds 5

      ridgescope stability mymodel:logits --dim 20 --radius 2 --json
    """
    with speaking_plainly():
        with stdout_kept_clean(), common.executor(target, asking) as executor:
            from ..stability import stability as several

            _, oracle = common.open_oracle(target, dim, case_seed, asking)
            found = several(
                oracle,
                seeds=range(seeds),
                within=within,
                after_each=lambda seed, run: aside(
                    f"seed {seed}: {len(run.features)} features, {run.queries:,} queries; {run.stopped}"
                ),
                executor=executor,
                **search.arguments(),
            )
        groups = [
            {
                "runs": g.runs,
                "spread": g.spread,
                "strength": g.strength,
                "shape": str(g.members[0].shape or "") or None,
                "direction": g.direction,
            }
            for g in found.groups
        ]
        if as_json:
            certified = [r.certificate.met for r in found.runs]
            print_json({"seeds": seeds, "certified": certified, "shared": len(found.shared), "features": groups})
        else:
            _show_groups(groups, seeds)
            console(stderr=False).print(str(found), highlight=False)
        all_same = len(found.shared) == len(found.groups) and all(r.certificate.met for r in found.runs)
        raise typer.Exit(CERTIFIED if all_same else NOT_MET)


def _show_groups(groups: list[dict[str, Any]], seeds: int) -> None:
    from rich.markup import escape

    table = plain_table(f"features of {seeds} runs")
    for name in ("found by", "angle between", "strength", "shape"):
        table.add_column(name, justify="left" if name == "shape" else "right", no_wrap=name != "shape")
    for g in groups:
        spread = f"{g['spread']:.1e}" if len(g["runs"]) > 1 else "–"
        table.add_row(f"{len(g['runs'])} of {seeds}", spread, f"{g['strength']:.3g}", escape(g["shape"] or "–"))
    console(stderr=False).print(table)


def compare(
    first: Annotated[Path, typer.Argument(metavar="RESULT", help="A folder that --out wrote.")],
    second: Annotated[
        Path, typer.Argument(metavar="OTHER", help="Another result, or a weight matrix: .npy or .safetensors.")
    ],
    key: Annotated[str | None, typer.Option(help="Which tensor of a .safetensors file.")] = None,
    within: common.Within = 0.1,
    as_json: common.Json = False,
) -> None:
    """Which directions of a result are in another result or in a weight matrix: matched, missed, new.

    A weight matrix has a direction in each row, as torch's Linear keeps them, or in each column. Exit code 0 when
    both have the same directions, else 3.

    Examples:

      ridgescope compare result other-result

      ridgescope compare result weights.safetensors --key layers.0.weight
    """
    with speaking_plainly():
        from ..match import match
        from .weights import read_weights

        found = load_result(first)
        other = (
            load_result(second).directions if second.is_dir() else read_weights(second, key, found.dim) * found.scale
        )
        told = match(found.directions, other, within=within)
        matched = [
            {"first": int(told.partner[j]), "second": j, "angle": float(told.angles[j])}
            for j in range(len(told.angles))
            if told.angles[j] <= within
        ]
        if as_json:
            print_json(jsonable({"matched": matched, "missed": told.missed, "new": told.false, "within": within}))
        else:
            table = plain_table(f"{first.name} against {second.name}")
            for name in (first.name, second.name, "angle"):
                table.add_column(name, justify="right", no_wrap=True)
            for pair in sorted(matched, key=lambda pair: pair["first"]):
                table.add_row(str(pair["first"]), str(pair["second"]), f"{pair['angle']:.1e}")
            out = console(stderr=False)
            out.print(table)
            out.print(f"missed: {_listed(told.missed)}; new: {_listed(told.false)}", highlight=False, markup=False)
            out.print(str(told), highlight=False, markup=False)
        raise typer.Exit(CERTIFIED if not len(told.missed) and not len(told.false) else NOT_MET)


def _listed(indices: Any) -> str:
    return ", ".join(map(str, indices)) or "none"
