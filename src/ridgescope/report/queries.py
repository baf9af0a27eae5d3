"""Figures about queries: errors of the certificate's queries, and how many queries each stage and round took."""

from __future__ import annotations

from html import escape

import numpy as np
import plotly.graph_objects as go

from ..feature import Checks, Round
from ..geometry import Floats
from ..result import Extraction
from .style import PALETTE, apply_style, as_float32, formula_html, side_by_side, tolerance_in_units

MAX_POINTS = 1500
"""Largest number of dots in a scatter plot; more make the page slow and show nothing else."""
_LEAST_ERROR, _LEAST_RESIDUAL = 1e-9, 1e-12
"""Smallest values drawn on logarithmic axes, in tolerances and in standard deviations."""
_BINS = (8, 24)
"""Smallest and largest number of bins along a feature; within these limits, two queries per bin on average."""
_MAX_NAMED = 100
"""Largest number of features for which hover labels of the heat map show formulas."""
_KINDS = (("in the ball", PALETTE[0]), ("along the features", PALETTE[2]), ("elsewhere", PALETTE[6]))
_DASHED = {"color": PALETTE[1], "dash": "dash"}
_START = Round(0, "nothing yet", 0, 0, 0, 1.0)
"""Point at which the curve of residuals starts: the model without features."""


# -- errors of the certificate's queries ---------------------------------------------------------------------


def errors(found: Extraction) -> go.Figure:
    """Return error by radius, largest error along each feature, and model against answers, side by side."""
    figure = side_by_side(
        {
            "error against radius": error_by_radius(found),
            "error along each feature": error_along(found),
            "model against answers": agreement(found),
        }
    )
    figure.update_yaxes(type="log", row=1, col=1)
    figure.update_yaxes(autorange="reversed", row=1, col=2)
    figure.update_traces(colorbar={"x": 0.64, "thickness": 10}, selector={"type": "heatmap"})
    return figure


def finite_checks(found: Extraction) -> Checks:
    """Return the certificate's queries whose numbers are all finite; empty if none were kept."""
    empty = np.empty(0)
    checks = found.checks if found.checks is not None else Checks(empty, empty, empty, empty, np.empty(0, np.intp))
    finite = np.isfinite(checks.asked) & np.isfinite(checks.predicted) & np.isfinite(checks.radius)
    return Checks(*(getattr(checks, name)[finite] for name in ("radius", "asked", "predicted", "position", "feature")))


def _in_tolerances(found: Extraction, checks: Checks) -> Floats:
    """Return errors (m,) in units of tolerance·std, bounded away from zero for the logarithm."""
    return np.maximum(checks.error / tolerance_in_units(found), _LEAST_ERROR)


def error_by_radius(found: Extraction) -> go.Figure:
    """Return a plot of every query's error over its distance from the centre; 1 is the tolerance."""
    checks = finite_checks(found).thinned(MAX_POINTS)
    error = _in_tolerances(found, checks)
    kinds = (checks.feature == Checks.UNIFORM, checks.feature >= 0, checks.feature == Checks.OTHER)
    figure = go.Figure()
    for (name, colour), rows in zip(_KINDS, kinds, strict=True):
        figure.add_scatter(
            x=as_float32(checks.radius[rows]),
            y=as_float32(error[rows]),
            mode="markers",
            name=name,
            marker={"color": colour, "size": 4, "opacity": 0.6},
            hovertemplate=f"{name}<br>radius %{{x:.2f}}<br>%{{y:.2g}} tolerances<extra></extra>",
        )
    figure.add_scatter(x=[0, found.radius], y=[1, 1], mode="lines", line=_DASHED, hoverinfo="skip", showlegend=False)
    apply_style(figure, 380, showlegend=True, legend={"orientation": "h", "y": 1.2, "x": 0})
    figure.update_layout(margin_t=60)
    figure.update_xaxes(title="distance from the centre", range=[0, 1.02 * found.radius])
    figure.update_yaxes(title="error, in tolerances", type="log", dtick=1, exponentformat="power")
    return figure


def largest_error_by_bin(found: Extraction) -> tuple[Floats, Floats]:
    """Return the edges of bins of [−R, R], and each feature's largest error (n, bins) there; NaN in empty bins."""
    checks = finite_checks(found)
    n = len(found.features)
    on = (checks.feature >= 0) & (checks.feature < n) & np.isfinite(checks.position)
    bins = int(np.clip(on.sum() / max(n, 1) / 2, *_BINS))
    edges = np.linspace(-found.radius, found.radius, bins + 1)
    largest = np.full((n, bins), np.nan)
    place = np.clip(np.searchsorted(edges, checks.position[on]) - 1, 0, bins - 1)
    np.fmax.at(largest, (checks.feature[on], place), _in_tolerances(found, checks)[on])
    return edges, largest


def error_along(found: Extraction) -> go.Figure:
    """Return a heat map of the largest error of each feature's own queries, over z from −R to R."""
    edges, largest = largest_error_by_bin(found)
    names = [f"{i}" for i in range(len(largest))]
    formulas = [[formula_html(f)] * largest.shape[1] for f in found.features] if len(largest) <= _MAX_NAMED else None
    figure = go.Figure(
        go.Heatmap(
            x=as_float32(0.5 * (edges[:-1] + edges[1:])),
            y=names,
            z=as_float32(np.log10(largest)),
            text=formulas,
            zmin=-4,
            zmax=0.3,
            colorscale=[[0, "#1b3a6b"], [0.5, "#3c9a9a"], [0.93, "#f2e394"], [0.94, "#d1495b"], [1, "#7a0019"]],
            colorbar={
                "thickness": 10,
                "tickvals": [-4, -3, -2, -1, 0],
                "ticktext": ["10⁻⁴", "10⁻³", "0.01", "0.1", "1"],
                "title": {"text": "tolerances", "side": "right"},
            },
            hovertemplate="feature %{y} %{text}<br>z about %{x:.2f}<br>10^%{z:.1f} tolerances<extra></extra>",
            hoverongaps=False,
        )
    )
    apply_style(figure, 380, margin={"t": 28, "b": 48, "l": 50, "r": 8})
    figure.update_xaxes(title="z = v·x along the feature", showgrid=False)
    figure.update_yaxes(title="feature", type="category", autorange="reversed", nticks=12, showgrid=False)
    return figure


def agreement(found: Extraction) -> go.Figure:
    """Return a plot of the model's prediction against the answer of f, with the diagonal."""
    checks = finite_checks(found).thinned(MAX_POINTS)
    figure = go.Figure()
    if len(checks):
        ends = [float(checks.asked.min()), float(checks.asked.max())]
        figure.add_scatter(x=ends, y=ends, mode="lines", line=_DASHED, hoverinfo="skip")
    figure.add_scatter(
        x=as_float32(checks.asked),
        y=as_float32(checks.predicted),
        mode="markers",
        marker={"color": PALETTE[0], "size": 4, "opacity": 0.6},
        hovertemplate="answer %{x:.4g}<br>model %{y:.4g}<extra></extra>",
    )
    apply_style(figure, 380)
    figure.update_xaxes(title="answer of f")
    figure.update_yaxes(title="prediction of the model")
    return figure


# -- how many queries -----------------------------------------------------------------------------------------


def by_stage(found: Extraction) -> go.Figure:
    """Return bars for the queries of each stage, largest first."""
    stages = sorted(found.queries_by_stage.items(), key=lambda pair: -pair[1])
    figure = go.Figure(
        go.Bar(
            x=[count for _, count in stages],
            y=[escape(name) or " " for name, _ in stages],
            orientation="h",
            text=[f"{count:,}" for _, count in stages],
            textposition="auto",
            marker_color=PALETTE[0],
            hoverinfo="skip",
        )
    )
    apply_style(figure, max(260, 90 + 30 * len(stages)), margin={"t": 12, "b": 44, "l": 90, "r": 16}, bargap=0.25)
    figure.update_xaxes(title="queries", nticks=6)
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False, ticksuffix=" ")
    return figure


def by_round(found: Extraction) -> go.Figure:
    """Return a plot of the residual after each round over the queries spent, labelled with the number of features."""
    rounds = [_START, *(r for r in found.history if np.isfinite(r.residual))]
    figure = go.Figure(
        go.Scatter(
            x=[r.queries for r in rounds],
            y=[max(r.residual, _LEAST_RESIDUAL) for r in rounds],
            mode="lines+markers+text" if len(rounds) <= 8 else "lines+markers",
            text=[str(r.features) if r.number else "" for r in rounds],
            textposition="top center",
            line={"color": PALETTE[0], "shape": "hv"},
            marker={"size": 8},
            hovertext=[
                f"round {r.number}: {escape(r.proposer)}<br>{r.candidates} proposed, {r.features} features<br>"
                f"residual {r.residual:.1e} at {r.queries:,} queries"
                for r in rounds
            ],
            hoverinfo="text",
        )
    )
    tolerance = found.certificate.tolerance
    if tolerance > 0:
        ends = [0, 1.05 * max(r.queries for r in rounds)]
        figure.add_scatter(x=ends, y=[tolerance] * 2, mode="lines", line=_DASHED, hoverinfo="skip")
    apply_style(figure, 260, margin={"t": 20, "b": 48, "l": 64, "r": 16})
    figure.update_xaxes(title="queries spent", rangemode="tozero", nticks=6)
    figure.update_yaxes(title="residual / std of f", type="log", dtick=1, exponentformat="power")
    return figure
