"""`verify`, `compare` and `report`: the commands that take a saved result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from zipfile import BadZipFile

import typer

from . import options, output
from .options import CallOptions, expand_groups
from .targets import open_executor, open_oracle

if TYPE_CHECKING:
    from ..geometry import Floats


@expand_groups
def verify(
    result: options.Saved,
    target: options.Target,
    calling: CallOptions,
    tolerance: Annotated[float | None, typer.Option(help="Tolerance to test; by default that of the result.")] = None,
    queries: options.Queries = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the fresh queries.")] = 1,
    out: options.Out = None,
    as_json: options.Json = False,
) -> None:
    """Test a saved result against its function again, with fresh queries and a new certificate.

    The exit code is 0 if the tolerance is met, 3 if it is not.

    Examples:

      ridgescope verify result mymodel:logits

      ridgescope verify result model.onnx --queries 1e5 --tolerance 0.001
    """
    with output.exit_on_error():
        with output.stdout_to_stderr(), open_executor(target, calling) as executor:
            from ..storage import load
            from ..verify import verify as check

            found = load(result)
            seed_of_case = int(found.seed) if found.seed.isdigit() else 0
            _, oracle = open_oracle(target, found.dim, seed_of_case, calling)
            again = check(found, oracle, tolerance=tolerance, queries=queries, executor=executor, rng=seed)
        if as_json:
            output.print_json(output.summary(again))
        else:
            style = "green" if again.certificate.met else "yellow"
            output.console(stderr=False).print(again.certificate.sentence, style=style, highlight=False)
        if out is not None:
            output.print_stderr(f"saved in {again.save(out)}")
        raise typer.Exit(output.exit_code(again))


def compare(
    first: options.Saved,
    second: Annotated[
        Path, typer.Argument(metavar="OTHER", help="Another result, or a weight matrix: .npy, .npz or .safetensors.")
    ],
    key: Annotated[str | None, typer.Option(help="Name of the tensor in a .safetensors or .npz file.")] = None,
    within: options.Within = 0.1,
    as_json: options.Json = False,
) -> None:
    """Compare the directions of a result with another result or a weight matrix: matched, missed, new.

    A weight matrix has a direction in each row, as torch's Linear keeps them, or in each column. The exit code is 0
    if both have the same directions, else 3.

    Examples:

      ridgescope compare result other-result

      ridgescope compare result weights.safetensors --key layers.0.weight
    """
    with output.exit_on_error():
        from ..match import match
        from ..storage import load

        found = load(first)
        other = load(second).directions if second.is_dir() else _read_weights(second, key, found.dim) * found.scale
        compared = match(found.directions, other, within=within)
        pairs = [
            {"first": int(compared.partner[j]), "second": j, "angle": float(compared.angles[j])}
            for j in range(len(compared.angles))
            if compared.angles[j] <= within
        ]
        if as_json:
            output.print_json({"matched": pairs, "missed": compared.missed, "new": compared.false, "within": within})
        else:
            table = output.new_table(f"{first.name} against {second.name}")
            for name in (first.name, second.name, "angle"):
                table.add_column(name, justify="right", no_wrap=True)
            for pair in sorted(pairs, key=lambda pair: pair["first"]):
                table.add_row(str(pair["first"]), str(pair["second"]), f"{pair['angle']:.1e}")
            out = output.console(stderr=False)
            out.print(table)
            lists = f"missed: {_listed(compared.missed)}; new: {_listed(compared.false)}"
            out.print(lists, highlight=False, markup=False)
            out.print(str(compared), highlight=False, markup=False)
        raise typer.Exit(output.CERTIFIED if not len(compared.missed) and not len(compared.false) else output.NOT_MET)


def _listed(indices: Any) -> str:
    """Return indices separated by commas, or "none"."""
    return ", ".join(map(str, indices)) if len(indices) else "none"


def _read_weights(path: Path, key: str | None, dim: int) -> Floats:
    """Return directions (n, dim) from a .npy, .npz or .safetensors file, transposed if only that fits."""
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    from ..errors import FileProblem, InvalidInput

    try:
        if path.suffix == ".safetensors":
            tensors = load_file(path)
        else:
            with path.open("rb") as file:
                loaded = np.load(file, allow_pickle=False)
                is_single = isinstance(loaded, np.ndarray)  # a .npy file holds one array without a name
                tensors, key = ({"": loaded}, "") if is_single else (dict(loaded), key)
    except (OSError, ValueError, EOFError, BadZipFile, SafetensorError) as problem:
        raise FileProblem(f"{path} cannot be read as a weight matrix: {problem}") from problem
    names = [name for name, tensor in tensors.items() if tensor.ndim == 2] if key is None else [key]
    if len(names) != 1 or names[0] not in tensors:
        raise InvalidInput(f"{path} holds {', '.join(sorted(tensors)) or 'nothing'}; choose a matrix with --key")
    matrix = tensors[names[0]]
    if matrix.ndim == 2 and matrix.shape[1] != dim and matrix.shape[0] == dim:
        matrix = matrix.T
    if matrix.ndim != 2 or matrix.shape[1] != dim:
        raise InvalidInput(f"{path} has shape {matrix.shape}; directions of {dim} coordinates are needed in its rows")
    return np.asarray(matrix, dtype=np.float64)


def report(
    result: options.Saved,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write; by default report.html in the result's folder.")
    ] = None,
) -> None:
    """Write the HTML report of a saved result: a single file that needs no network connection.

    Examples:

      ridgescope report result

      ridgescope report result --out report.html
    """
    with output.exit_on_error():
        from ..storage import load

        path = load(result).report(out if out is not None else result / "report.html")
        output.print_stderr(f"report: {path}")
