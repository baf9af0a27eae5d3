"""The report: a single HTML file that needs no network connection.

Text from outside (formulas, notes, the command) reaches the page as escaped HTML, or inside JSON in which `<` is
written `\\u003c`; the script puts it into the page as text, never as markup.
"""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from ..feature import gated_text
from ..result import Extraction
from . import geometry, queries, responses, star
from .style import count_of


def write_report(found: Extraction, path: Path) -> Path:
    """Write the page of `found` to `path`, creating its folder if necessary, and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(found), encoding="utf-8")
    return path


def page(found: Extraction) -> str:
    """Return the HTML of the page."""
    head = (
        "<meta charset='utf-8'><meta name='viewport' content='width=device-width, initial-scale=1'>"
        "<link rel='icon' href='data:,'>"
        f"<title>ridgescope: {_heading(found)}</title><style>{_asset('page.css')}</style>"
    )
    body = "".join(
        (
            _answer(found),
            *((_star(found), _gallery(found), _geometry(found)) if found.features else ()),
            _errors(found),
            _queries(found),
            f"<script>{get_plotlyjs()}</script>",
            f"<script>{_asset('page.js')}</script>",
        )
    )
    return f"<!doctype html><html lang='en'><head>{head}</head><body><main>{body}</main></body></html>"


def _asset(name: str) -> str:
    """Return the text of a file that lies beside this module."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _data(name: str, value: Any) -> str:
    """Return a script element that holds JSON; `<` is escaped, so that nothing in it can end the element."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
    return f"<script type='application/json' id='{name}'>{text.replace('<', chr(92) + 'u003c')}</script>"


def _plot(name: str, figure: go.Figure, label: str) -> str:
    """Return a figure element with the data that the script draws it from."""
    height = int(figure.layout.height)
    place = f"<div class='plot' data-figure='{name}' style='height:{height}px' role='img' aria-label='{escape(label)}'>"
    data = _data(f"figure-{name}", figure.to_json())
    return f"<figure><figcaption>{escape(label)}</figcaption>{place}</div>{data}</figure>"


def _section(name: str, title: str, *parts: str) -> str:
    """Return a section of the page with its heading."""
    return f"<section id='{name}'><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def _heading(found: Extraction) -> str:
    """Return the numbers of features and dimensions in words."""
    return (
        f"{count_of(len(found.features), 'feature')}{gated_text(found.features)} in {count_of(found.dim, 'dimension')}"
    )


# -- the six sections ---------------------------------------------------------------------------------------


def _answer(found: Extraction) -> str:
    """Return the head of the page: menu, certificate, main figures, and why the run ended."""
    c = found.certificate
    verdict, mark = ("met", "✓ certified") if c.met else ("missed", "✗ not certified")
    unit = "of f's standard deviation" if c.std > 0 else "in f's units"
    numbers = {
        "features": f"{len(found.features):,}",
        "input dimensions": f"{found.dim:,}",
        **({"outputs": f"{found.outputs:,}"} if found.outputs is not None else {}),
        "queries": f"{found.queries:,}",
        f"largest error seen, {unit}": _relative(c.sup_seen, c.std),
        f"RMS error, {unit}": _relative(c.rms, c.std),
        "of the ball covered by the certificate": f"{100 * c.coverage:.3g} %",
    }
    tiles = "".join(f"<div><b>{escape(v)}</b><span>{escape(k)}</span></div>" for k, v in numbers.items())
    on_data = f"<p>{escape(found.data_check.sentence)}.</p>" if found.data_check is not None else ""
    notes = "".join(f"<p>{escape(text)}</p>" for text in (found.stopped, found.diagnosis) if text)
    dropped = f"<p>{count_of(found.dropped, 'answer')} left out as not finite.</p>" if found.dropped else ""
    menu = "".join(
        f"<a href='#{name}'>{name}</a>" for name in ("star", "responses", "geometry", "errors", "queries")
        if found.features or name in ("errors", "queries")
    )  # fmt: skip
    return (
        "<header><nav>"
        f"<b>ridgescope</b>{menu}<button id='theme' type='button' aria-label='light or dark'>◐</button></nav>"
        f"<h1>{_heading(found)}</h1><p class='verdict {verdict}'><b>{mark}</b> {escape(c.sentence)}.</p>{on_data}"
        f"<div class='tiles'>{tiles}</div>{notes}{dropped}</header>"
    )


def _relative(error: float, std: float) -> str:
    """Return the error as a fraction of f's standard deviation, or as it is if f does not vary."""
    return f"{error / std if std > 0 else error:.2g}"


def _star(found: Extraction) -> str:
    """Return the section with the Fourier power in planes."""
    planes = star.shown_planes(found)
    if not planes:
        return _section("star", "The star", "<p>The input has one dimension, and a star needs a plane.</p>")
    words = star.caption(found, planes)
    return _section(
        "star",
        "The star",
        f"<p>{escape(words)}</p>",
        _plot("star", star.star(found, planes), "Fourier power in a plane"),
    )


def _gallery(found: Extraction) -> str:
    """Return the section with one card for each response, which the script draws."""
    outputs = ""
    if found.outputs is not None and not all(f.gated for f in found.features):
        shown = min(found.outputs, responses.MAX_OUTPUTS)
        whose = "plain feature" if any(f.gated for f in found.features) else "feature"
        outputs = f" Of {found.outputs} outputs, the {shown} that a {whose} changes most are drawn, one colour each."
    words = (
        "Each response over [−R, R], with its strength, the angle error of its direction, a band of two standard "
        f"errors and a dotted line at each kink. Hover over a card for its direction; click it to enlarge it.{outputs}"
    )
    gated = ""
    if any(f.gated for f in found.features):
        gated = (
            "<p>A gated feature is s(v·x) + t(v·x)(u·x). The gate listens to v and lets through t(v·x) of the carrier "
            "u·x, u across v. Its card has two curves over z = v·x: above s, what the feature does where u·x is 0, "
            "below the gain t. Straight lines are in the affine part: s has no slope, and t is 0 at 0."
            + " Both are drawn along the feature's output direction, which the card names."
            * (found.outputs is not None)
            + "</p>"
        )
    sorting = "".join(
        f"<button type='button' data-sort='{key}' aria-pressed='false'>{label}</button>"
        for key, label in (("strength", "strength"), ("angle", "angle error"), ("shape", "shape"))
    )
    return _section(
        "responses",
        "Responses",
        f"<p>{words}</p>{gated}<div class='sorting'>sort by {sorting}</div>",
        "<div class='cards' id='cards'></div><button type='button' id='more' hidden></button>",
        "<div id='tip' role='tooltip' hidden></div><dialog id='large'></dialog>",
        _data("features", {"radius": found.radius, "features": responses.cards(found)}),
    )


def _geometry(found: Extraction) -> str:
    """Return the section about the angles between directions."""
    return _section(
        "geometry",
        "The geometry of the superposition",
        f"<p>{escape(geometry.sentence(found))}</p><div class='pair'>",
        _plot("cosines", geometry.cosines(found), "|cos| between directions in percent, similar ones side by side"),
        _plot("angles", geometry.angles(found), "Angles between pairs; dotted: random directions"),
        _plot("counts", geometry.counts(found), "Features against dimensions"),
        "</div>",
    )


def _errors(found: Extraction) -> str:
    """Return the section about the errors of the certificate's queries."""
    if found.checks is None or not len(queries.finite_checks(found)):
        return _section(
            "errors", "Errors", "<p>This result does not hold the individual queries of its certificate.</p>"
        )
    words = (
        "Every dot is a fresh query of the certificate. Uniform points of a ball seldom lie far along any one "
        "direction, so there are also queries along each feature, from −R to R. The unit of the errors is the "
        f"tolerance, {found.certificate.tolerance:g} of f's standard deviation over the ball."
    )
    along = _plot("along", queries.error_along(found), "Largest error along each feature") if found.features else ""
    return _section(
        "errors",
        "Errors",
        f"<p>{words}</p><div class='pair'>",
        _plot("radius", queries.error_by_radius(found), "Error against radius"),
        along,
        _plot("agreement", queries.agreement(found), "Model against answers"),
        "</div>",
    )


def _queries(found: Extraction) -> str:
    """Return the section about the queries of each stage and round."""
    spent, rows = 0, []
    for r in found.history:
        cells = [str(r.number), escape(r.proposer), f"{r.queries - spent:,}", str(r.candidates), str(r.features)]
        rows.append("".join(f"<td>{c}</td>" for c in [*cells, f"{r.residual:.1e}", escape(r.note)]))
        spent = r.queries
    names = ("round", "proposer", "queries", "proposed", "features", "residual", "note")
    table = (
        f"<div class='wide'><table><tr>{''.join(f'<th>{n}</th>' for n in names)}</tr>"
        f"{''.join(f'<tr>{row}</tr>' for row in rows)}</table></div>"
        if rows
        else ""
    )
    plots = [_plot("stages", queries.by_stage(found), "Queries of each stage")]
    if found.history:
        plots.append(
            _plot(
                "rounds",
                queries.by_round(found),
                "Residual after each round, with the number of features; dashed: tolerance",
            )
        )
    return _section(
        "queries",
        "Where the queries went",
        f"<p>{count_of(found.queries, 'query', 'queries')} in total.</p><div class='pair'>",
        *plots,
        f"</div>{table}",
        _reproduce(found),
    )


def _reproduce(found: Extraction) -> str:
    """Return the part that shows how to repeat the run."""
    c = found.certificate
    call = (
        f"rs.extract(f, dim={found.dim}, radius={found.radius:g}, tolerance={c.tolerance:g}, "
        f"confidence={c.confidence:g}, rng={found.seed})"
    )
    how = found.command or call
    missing = (
        "" if found.command else " Settings that a result does not store, such as method and max_queries, are missing."
    )
    repeats = (
        "f is deterministic: the same seed and version give the same bits."
        if found.deterministic
        else "f is not deterministic, so another run may differ."
    )
    return (
        f"<h3>To repeat the run</h3><pre>{escape(how)}</pre>"
        f"<p>ridgescope {escape(found.version)}, seed {escape(found.seed)}. {repeats}{missing}</p>"
    )
