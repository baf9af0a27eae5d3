"""Write docs/api.md, the API reference, from the signatures and docstrings of the public names.

The source is read, not run: signatures appear as they are written, and the string below a field is its meaning. Run:
python benchmarks/api_page.py docs/api.md"""

from __future__ import annotations

import argparse
import ast
import html
import inspect
import re
import sys
import textwrap
from importlib import import_module
from pathlib import Path
from types import ModuleType

import ridgescope as rs

Function = ast.FunctionDef | ast.AsyncFunctionDef

INTRODUCTION = """\
# API reference

Everything is imported as `import ridgescope as rs`. Names are loaded when first used, so that an optional library is
needed only by what uses it. `Floats` is a float64 array. This page is written by
`python benchmarks/api_page.py docs/api.md` from the docstrings.
"""

SECTIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Extracting", "ridgescope", ("extract", "load", "match", "match_gated", "verify", "stability")),
    (
        "Results",
        "ridgescope",
        (
            "Extraction",
            "StopReason",
            "Feature",
            "Response",
            "Shape",
            "ClosedForm",
            "Network",
            "GatedNetwork",
            "BilinearNetwork",
            "Certificate",
            "DataCheck",
            "Round",
            "Match",
            "GatedMatch",
            "Stability",
        ),
    ),
    ("Without queries", "ridgescope", ("RidgeSumRegressor",)),
    ("Figures: found.plot", "ridgescope.report", ("Plots",)),
    (
        "Errors",
        "ridgescope",
        (
            "RidgescopeError",
            "InvalidInput",
            "BadAnswer",
            "OracleFailed",
            "BudgetExhausted",
            "ReachExceeded",
            "FileProblem",
            "LedgerProblem",
            "Interrupted",
        ),
    ),
    ("What can be asked: rs.oracle", "ridgescope.oracle", ()),
    ("Known truths: rs.targets", "ridgescope.targets", ()),
    ("The paper as written: rs.paper", "ridgescope.paper", ()),
)
PLAIN = {
    "Extraction.features": "The terms of the sum, strongest first.",
    "Extraction.radius": "Of the ball on which f is reproduced.",
    "Extraction.center": "(d,) of the ball, in the coordinates of x.",
    "Extraction.scale": "(d,) units of the coordinates of x.",
    "Extraction.certificate": "What fresh queries say.",
    "Extraction.queries": "Rows asked, those of the certificate included.",
    "Extraction.queries_by_stage": "What each stage asked.",
    "Extraction.history": "One line for each round of the search.",
    "Extraction.deterministic": "Did f answer the same input twice with the same value?",
    "Extraction.seed": "`rng`, where it was a number.",
    "Extraction.version": "Of ridgescope, at the time.",
    "Extraction.planes": "Planar Fourier powers that the search has seen, for the star.",
    "Extraction.dim": "d.",
    "Feature.direction": "(d,) unit vector v; its largest coordinate is positive.",
    "Feature.response": "s, without its straight line.",
    "Feature.shape": "A closed form, where one explains the response.",
    "Response.radius": "R.",
    "Response.intervals": "K.",
    "Shape.parameters": "The numbers of the closed form, by name.",
    "Certificate.tolerance": "As asked for, a fraction of `std`.",
    "Certificate.std": "Standard deviation of f over the ball.",
    "Certificate.noise": "Allowed for in every answer.",
    "Certificate.rms": "Root mean square error over the ball.",
    "Certificate.rms_low": "Lower end of its interval.",
    "Certificate.rms_high": "Upper end of its interval.",
    "Certificate.coverage": "Share of the ball that `bound` speaks for.",
    "Certificate.confidence": "Of the statement about `bound`.",
    "Certificate.samples": "Fresh queries asked.",
    "Certificate.sentence": "All of it in words.",
    "Round.number": "From 1.",
    "Round.proposer": "Which ways to guess directions had their turn.",
    "Round.candidates": "Directions proposed.",
    "Round.features": "Features in the model after the fit.",
    "Round.note": "What the proposers say, with numbers.",
    "Stability.runs": "One result for each seed.",
    "Stability.within": "Angle up to which directions count as the same.",
    "Plots.found": "The result.",
    "Oracle.has_gradient": "Was a gradient given?",
    "Oracle.queries": "Rows asked so far.",
    "Repeatability.deterministic": "Did every row get the same answer twice?",
    "Case.name": "As in `CASES`.",
    "Case.dim": "d.",
    "Case.features": "n.",
    "Case.kinds": "Kinds of responses, drawn in turn.",
    "Case.options": "Of `planted`.",
    "Case.radius": "Of the ball.",
    "Planted.directions": "(n, d) unit rows.",
    "Planted.drawn": "The responses.",
    "Planted.scalar": "Is there one output?",
    "Planted.noise": "Largest error of an answer.",
    "Planted.noise_kind": "uniform, adversarial or fresh.",
    "Planted.noise_seed": "Of the errors.",
    "Planted.__call__": "Values, with their noise: (m,) or (m, p).",
    "rowwise.__call__": "One call for each row.",
    "Planted.dim": "d.",
    "Planted.outputs": "p, or None for a scalar target.",
    "Planted.kinds": "The kind of each response.",
}
"""Members whose name says nearly all, and which have no sentence in the source."""
BRIEF = {"ridgescope.paper"}
"""Modules of which only the first sentence of each name is told."""


def page() -> str:
    """The page as Markdown."""
    parts = [INTRODUCTION, f"`rs.__version__` is `{rs.__version__!r}` here.\n"]
    for title, home, names in SECTIONS:
        module = import_module(home)
        prefix = "rs." if home in ("ridgescope", "ridgescope.report") else f"rs.{home.split('.')[1]}."
        parts.append(f"## {title}\n")
        if not names:
            parts.append(_text(module.__doc__ or "") + "\n")
        if home == "ridgescope.oracle":
            parts.append("`**options` below are those of `Oracle`: center, scale, batch, on_bad, output and so on.\n")
        shown = names or tuple(module.__all__)
        if home in BRIEF:
            parts.append(_brief(module, shown))
        else:
            parts += [_entry(module, name, prefix if home != "ridgescope.report" else "found.plot: ") for name in shown]
    return "\n".join(parts)


def _entry(module: ModuleType, name: str, prefix: str) -> str:
    thing = getattr(module, name)
    lines = [f"### {prefix}{name}\n"]
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
        return "\n".join([*lines, f"{_constant(thing)}\n"])
    node = _tree(thing)
    text = inspect.cleandoc(ast.get_docstring(node) or "")
    if isinstance(node, ast.ClassDef):
        maker = next((f for f in node.body if isinstance(f, Function) and f.name == "__init__"), None)
        if maker is not None and not issubclass(thing, BaseException):
            lines.append(_code(_signature(maker, prefix + name, skip_first=True)))
        lines.append(_text(text) + "\n")
        members = [] if issubclass(thing, rs.RidgescopeError) else _members(node)
        if members:
            lines += ["| member | meaning |", "|---|---|", *(f"| {_cell(m)} | {_cell(t)} |" for m, t in members), ""]
    else:
        lines += [_code(_signature(node, prefix + name)), _text(text) + "\n"]
    return "\n".join(lines)


def _constant(thing: object) -> str:
    words = list(thing) if isinstance(thing, tuple) else list(getattr(thing, "keys", list)())
    return ", ".join(f"`{word}`" for word in words)


def _brief(module: ModuleType, names: tuple[str, ...]) -> str:
    rows = []
    for name in names:
        node = _tree(getattr(module, name))
        call = f"({', '.join(_parameters(node))})" if isinstance(node, Function) else ""
        rows.append(f"| `{name}{call}` | {_cell(_first(ast.get_docstring(node) or ''))} |")
    return "\n".join(["| name | meaning |", "|---|---|", *rows, ""])


def _tree(thing: object) -> ast.ClassDef | Function:
    """The definition as it stands in the source."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(thing))).body  # type: ignore[arg-type]
    assert isinstance(node, ast.ClassDef | Function)
    return node


def _parameters(node: Function) -> list[str]:
    a = node.args
    return [x.arg for x in (*a.posonlyargs, *a.args)] + [f"{x.arg}=" for x in a.kwonlyargs]


def _signature(node: Function, name: str, *, skip_first: bool = False) -> str:
    """name(first, second, *, third=…) -> result, one parameter a line where it is long."""
    pieces = _arguments(node)[1 if skip_first else 0 :]
    result = f" -> {ast.unparse(node.returns)}" if node.returns and not skip_first else ""
    line = f"{name}({', '.join(pieces)}){result}"
    if len(line) <= 100:
        return line
    return f"{name}(\n" + "".join(f"    {piece},\n" for piece in pieces) + f"){result}"


def _arguments(node: Function) -> list[str]:
    """`name: type = default`, one by one."""
    return [re.sub(r"(?<=[\w\])])=(?=[^=])", " = ", piece) for piece in _split(ast.unparse(node.args))]


def _split(arguments: str) -> list[str]:
    """At the commas that stand outside of brackets and quotes."""
    pieces, depth, quote, start = [], 0, "", 0
    for i, c in enumerate(arguments):
        if quote:
            quote = "" if c == quote else quote
        elif c in "\"'":
            quote = c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == "," and not depth:
            pieces.append(arguments[start:i].strip())
            start = i + 1
    return [piece for piece in [*pieces, arguments[start:].strip()] if piece]


def _members(node: ast.ClassDef) -> list[tuple[str, str]]:
    """Public fields, properties and methods with the first sentence of what is said about them."""
    out = []
    for item, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.target.id[0] != "_":
            told = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            out.append((item.target.id, f": {ast.unparse(item.annotation)}", _first(str(told))))
        elif isinstance(item, ast.Assign) and any(ast.unparse(base).endswith("Enum") for base in node.bases):
            told = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            out.append((ast.unparse(item.targets[0]), "", _first(str(told))))
        elif isinstance(item, Function) and (item.name[0] != "_" or item.name == "__call__"):
            told = ast.get_docstring(item) or ""
            if any(ast.unparse(d).endswith("property") for d in item.decorator_list):
                out.append((item.name, f": {ast.unparse(item.returns) if item.returns else ''}", _first(told)))
            else:
                call = f"({', '.join(_arguments(item)[1:])})"
                out.append((item.name, call, _first(told)))
    return [(f"`{name}{rest}`", told or PLAIN.get(f"{node.name}.{name}", "")) for name, rest, told in out]


def _first(text: str) -> str:
    """The first sentence."""
    paragraph = " ".join(inspect.cleandoc(text).split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s(?=[A-ZΣ`(])", paragraph)[0]


def _cell(text: str) -> str:
    """Markdown dialects differ on how to escape a bar in code in a table; an entity in <code> is understood by all."""
    coded = re.sub(r"`([^`]*\|[^`]*)`", lambda m: f"<code>{html.escape(m[1], quote=False)}</code>", text)
    return coded.replace("|", "&#124;")


def _code(text: str) -> str:
    return textwrap.indent(text, "    ") + "\n"


SECTION = re.compile(r"^(Parameters|Attributes|Returns|Yields|Raises|Notes|Examples)\n-+\n", re.MULTILINE)


def _text(docstring: str) -> str:
    """A docstring as Markdown: numpydoc sections become lists and code, indented formulas stay as they are."""
    text = inspect.cleandoc(docstring).replace("docs/theory.md", "[Theory](theory.md)")
    first, *rest = SECTION.split(text)
    parts = [first.strip()]
    for name, body in zip(rest[::2], rest[1::2], strict=True):
        if name == "Examples":
            parts.append("Example:\n\n" + textwrap.indent(body.strip(), "    "))
        elif name == "Notes":
            parts.append(body.strip())
        else:
            items, prose = _items(body)
            label = "" if name in ("Parameters", "Attributes") else f"{name}:\n\n"
            parts += [label + items, prose]
    return "\n\n".join(part for part in parts if part)


def _items(body: str) -> tuple[str, str]:
    """The list of a section, name by name with its indented meaning, and the prose that follows it."""
    lines = body.rstrip().split("\n")
    found: list[str] = []
    for i, line in enumerate(lines):
        if line.startswith(" "):
            found[-1] += ("" if found[-1].endswith(": ") else " ") + line.strip()
        elif line and (i + 1 == len(lines) or not lines[i + 1].startswith(" ")):
            return "\n".join(found), "\n".join(lines[i:])
        elif line:
            found.append("- " + ", ".join(f"`{word}`" for word in line.split(" : ")[0].split(", ")) + ": ")
    return "\n".join(found), ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, help="where to write the page")
    args = parser.parse_args()
    args.path.write_text(page(), encoding="utf-8")
    print(f"{args.path}: {len(page().splitlines())} lines", file=sys.stderr)


if __name__ == "__main__":
    main()
