"""The certificate's queries, drawn: where the model is how wrong."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..geometry import Floats
from ..result import Checks, Extraction
from .look import PALETTE, named, relative, small, styled

MOST_POINTS = 1500
_KINDS = (("in the ball", PALETTE[0]), ("along the features", PALETTE[2]), ("elsewhere", PALETTE[6]))


def errors(found: Extraction) -> go.Figure:
    """Error against radius, along each feature's own ray, and predicted against asked."""
    parts = (error_by_radius(found), error_along(found), agreement(found))
    titles = ("error against radius", "error along each ray", "predicted against asked")
    figure = make_subplots(1, 3, subplot_titles=titles, horizontal_spacing=0.1)
    for column, part in enumerate(parts, 1):
        figure.add_traces(part.data, rows=1, cols=column)
    styled(figure, 420)
    figure.update_yaxes(type="log", row=1, col=1)
    figure.update_yaxes(autorange="reversed", row=1, col=2)
    figure.update_traces(colorbar={"x": 0.64, "thickness": 10}, selector={"type": "heatmap"})
    return figure


def queries_kept(found: Extraction) -> Checks:
    """The certificate's queries, those aside that have no finite figures; none where none were kept."""
    empty = np.empty(0)
    checks = found.checks if found.checks is not None else Checks(empty, empty, empty, empty, np.empty(0, np.intp))
    finite = np.isfinite(checks.asked) & np.isfinite(checks.predicted) & np.isfinite(checks.radius)
    kept = Checks(*(getattr(checks, name)[finite] for name in ("radius", "asked", "predicted", "position", "feature")))
    return kept


def _in_tolerances(found: Extraction, checks: Checks) -> Floats:
    """Errors in units of tolerance·std, kept off zero for the logarithm."""
    return np.maximum(checks.error / relative(found), 1e-9)


def error_by_radius(found: Extraction) -> go.Figure:
    """Every query's error over its distance from the centre; 1 is the tolerance."""
    checks = queries_kept(found).thinned(MOST_POINTS)
    error = _in_tolerances(found, checks)
    kinds = (checks.feature == Checks.UNIFORM, checks.feature >= 0, checks.feature == Checks.ASIDE)
    figure = go.Figure()
    for (name, colour), rows in zip(_KINDS, kinds, strict=True):
        figure.add_scatter(
            x=small(checks.radius[rows]),
            y=small(error[rows]),
            mode="markers",
            name=name,
            marker={"color": colour, "size": 4, "opacity": 0.6},
            hovertemplate=f"{name}<br>radius %{{x:.2f}}<br>%{{y:.2g}} tolerances<extra></extra>",
        )
    figure.add_scatter(
        x=[0, found.radius], y=[1, 1], mode="lines", line={"color": PALETTE[1], "dash": "dash"}, hoverinfo="skip",
        showlegend=False,
    )  # fmt: skip
    styled(figure, 380, showlegend=True, legend={"orientation": "h", "y": 1.2, "x": 0})
    figure.update_layout(margin_t=60)
    figure.update_xaxes(title="distance from the centre", range=[0, 1.02 * found.radius])
    figure.update_yaxes(title="error, in tolerances", type="log", dtick=1, exponentformat="power")
    return figure


def worst_along(found: Extraction) -> tuple[Floats, Floats]:
    """Edges of bins of [−R, R], and the largest error (n, bins) of each feature's queries there; NaN for none."""
    checks = queries_kept(found)
    n = len(found.features)
    on = (checks.feature >= 0) & (checks.feature < n) & np.isfinite(checks.position)
    bins = int(np.clip(on.sum() / max(n, 1) / 2, 8, 24))
    edges = np.linspace(-found.radius, found.radius, bins + 1)
    worst = np.full((n, bins), np.nan)
    place = np.clip(np.searchsorted(edges, checks.position[on]) - 1, 0, bins - 1)
    np.fmax.at(worst, (checks.feature[on], place), _in_tolerances(found, checks)[on])
    return edges, worst


def error_along(found: Extraction) -> go.Figure:
    """Largest error of each feature's own queries, from one end of its ray to the other."""
    edges, worst = worst_along(found)
    names = [f"{i}" for i in range(len(worst))]
    words = [[named(f)] * worst.shape[1] for f in found.features] if len(worst) <= 100 else None
    figure = go.Figure(
        go.Heatmap(
            x=small(0.5 * (edges[:-1] + edges[1:])),
            y=names,
            z=small(np.log10(worst)),
            text=words,
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
    styled(figure, 380, margin={"t": 28, "b": 48, "l": 50, "r": 8})
    figure.update_xaxes(title="z = v·x along the feature's own ray", showgrid=False)
    figure.update_yaxes(title="feature", type="category", autorange="reversed", nticks=12, showgrid=False)
    return figure


def agreement(found: Extraction) -> go.Figure:
    """What the model predicted against what was answered."""
    checks = queries_kept(found).thinned(MOST_POINTS)
    figure = go.Figure()
    if len(checks):
        low, high = float(checks.asked.min()), float(checks.asked.max())
        figure.add_scatter(
            x=[low, high], y=[low, high], mode="lines", line={"color": PALETTE[1], "dash": "dash"}, hoverinfo="skip"
        )
    figure.add_scatter(
        x=small(checks.asked),
        y=small(checks.predicted),
        mode="markers",
        marker={"color": PALETTE[0], "size": 4, "opacity": 0.6},
        hovertemplate="asked %{x:.4g}<br>predicted %{y:.4g}<extra></extra>",
    )
    styled(figure, 380)
    figure.update_xaxes(title="asked: the answer")
    figure.update_yaxes(title="predicted")
    return figure
