"""The picture of docs/architecture.md: the way that data takes through `rs.extract`.

    python benchmarks/architecture_figure.py docs/architecture.svg

Every box names functions of the code. The script imports each of them, so that a name that no longer exists stops it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from html import escape
from importlib import import_module
from pathlib import Path

WIDTH, BOX, ROW, GAP = 980, 340, 21, 46
LEFT, RIGHT = 40, 560


@dataclass(frozen=True)
class Box:
    """One step: what it is called, the functions that do it, and what it hands on."""

    title: str
    names: tuple[str, ...]
    """Dotted below `ridgescope`: module, then class or function, then method."""
    gives: str = ""
    """The value that goes on to the next box."""
    beside: tuple[str, ...] = ()
    """What these functions call, in the column on the right."""
    in_loop: bool = False


STEPS = (
    Box(
        "arguments and oracle",
        ("extract.extract", "arguments.check_arguments", "oracle.base.as_oracle"),
        "Oracle",
        ("oracle.base.Oracle", "oracle.batching.ask_in_batches", "oracle.ledger.Ledger"),
    ),
    Box(
        "survey",
        ("state.State.run_survey",),
        "Survey",
        ("survey.run_survey", "noise.noise_level", "rounding.measure_rounding"),
    ),
    Box("fit what needs no search", ("state.State.fit_without_search",), "Evaluation"),
    Box(
        "certify",
        ("certification.Certifier.try_certify",),
        "CertificationOutcome: not certified",
        ("certify.certify", "missed_subspace.missed_directions", "state.State.refit_with_more_points"),
        True,
    ),
    Box(
        "propose",
        ("schedule.AutoPolicy.next_proposers", "schedule.propose"),
        "Candidates",
        (
            "search.kinks.Kinks.propose",
            "search.curvature.Curvature.propose",
            "search.tensors.Tensors.propose",
            "search.far_field.FarField.propose",
            "search.slices.Slices.propose",
        ),
        True,
    ),
    Box(
        "fit and prune",
        ("state.State.fit", "fit.fitter.Fitter.fit"),
        "",
        (
            "fit.levenberg_marquardt.levenberg_marquardt",
            "fit.pruning.prune",
            "fit.context.evaluate",
            "wide.layer.WideLayer.fit",
        ),
        True,
    ),
    Box(
        "result",
        ("certification.Certifier.conclude", "fit.canonical.canonical_features", "diagnose.diagnose"),
        "Extraction",
        ("fit.errorbars.error_bars", "shapes.naming.name_shape", "result.Extraction"),
    ),
)


def resolve(name: str) -> object:
    """Return the object that a dotted name below `ridgescope` stands for; raise if there is none."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = import_module("ridgescope." + ".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise AttributeError(f"ridgescope has no {name}")


def figure() -> str:
    """Return the picture as SVG."""
    lines, y, tops = list[str](), 20, dict[bool, list[int]]({True: [], False: []})
    for k, step in enumerate(STEPS):
        for name in (*step.names, *step.beside):
            resolve(name)
        rows = max(len(step.names), len(step.beside)) + 1
        height = ROW * rows + 12
        lines.append(_box(LEFT + 20, y, height, step.title, step.names, "step"))
        if step.beside:
            lines.append(_box(RIGHT, y, height, "", step.beside, "beside"))
            middle = y + height / 2
            lines.append(_arrow(LEFT + 20 + BOX, middle, RIGHT, middle))
        tops[step.in_loop] += [y, y + height]
        bottom = y + height
        if step.gives and k < len(STEPS) - 1:
            centre = LEFT + 20 + BOX / 2
            lines.append(_arrow(centre, bottom, centre, bottom + GAP))
            below = bottom + GAP / 2 + 4
            lines.append(f'<text x="{centre + 10}" y="{below}" class="value">{escape(step.gives)}</text>')
        y = bottom + GAP
    top, bottom = min(tops[True]), max(tops[True])
    edge, lane, leave, arrive = LEFT + 20 + BOX, LEFT + BOX + 90, tops[True][1] - 14, tops[False][-1] - 14
    stop = f'<path d="M {edge} {leave} H {lane} V {arrive} H {edge + 4}"/>'
    why = f'<text x="{lane - 14}" y="{bottom + GAP / 2 + 4}" class="value" text-anchor="end">StopReason</text>'
    loop = f'<path class="loop" d="M {LEFT + 20} {bottom - 20} H {LEFT - 10} V {top + 20} H {LEFT + 14}"/>'
    turned = f"translate({LEFT - 18},{(top + bottom) / 2}) rotate(-90)"
    label = f'<text class="value" text-anchor="middle" transform="{turned}">again, on the residual</text>'
    style = (
        "text{font:13px system-ui,sans-serif;fill:#1f2933}.title{font-weight:600}.value{font-style:italic;fill:#52606d}"
        ".name{font:12px ui-monospace,monospace}rect{stroke:#7b8794;fill:#f5f7fa}"
        "rect.beside{fill:#fff;stroke-dasharray:4 3}"
        "path,line{stroke:#52606d;fill:none;stroke-width:1.4;marker-end:url(#tip)}"
    )
    tip = (
        '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" style="fill:#52606d;stroke:none;marker-end:none"/></marker>'
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y - GAP + 20}" role="img">'
    title = "<title>The way that data takes through rs.extract</title>"
    ground = '<rect x="0" y="0" width="100%" height="100%" style="fill:#fff;stroke:none"/>'
    defined = f"<style>{style}</style><defs>{tip}</defs>"
    return "\n".join([head, title, defined, ground, *lines, loop, label, stop, why, "</svg>", ""])


def _box(x: float, y: float, height: float, title: str, names: tuple[str, ...], kind: str) -> str:
    width = BOX if title else WIDTH - RIGHT - 20
    out = [f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>']
    row = y + ROW
    if title:
        out.append(f'<text class="title" x="{x + 12}" y="{row}">{escape(title)}</text>')
        row += ROW
    out += [f'<text class="name" x="{x + 12}" y="{row + k * ROW}">{escape(n)}</text>' for k, n in enumerate(names)]
    return "".join(out)


def _arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(figure(), encoding="utf-8")
