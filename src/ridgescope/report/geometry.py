"""Figures of the angles between directions, which show how the features share the dimensions of the input."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from ..geometry import Floats
from ..result import Extraction
from .style import PALETTE, apply_style, as_float32, count_of, side_by_side

MAX_FEATURES = 500
"""Largest number of features in the matrix and the histogram, strongest first: the page stays below ten megabytes."""
_OPTIMAL_ORDER = 200
"""Largest number of features whose order is optimised, which takes time of fourth order."""
_MIN_SINGULAR = 1e-3
"""Relative size below which a singular value of the directions counts as zero."""


def geometry(found: Extraction) -> go.Figure:
    """Return |cos| between directions in percent, the angles between pairs, and the counts n and d, side by side."""
    figure = side_by_side(
        {
            "|cos| between directions": cosines(found),
            "angles between pairs": angles(found),
            "features and dimensions": counts(found),
        },
        bargap=0.05,
    )
    figure.update_yaxes(autorange="reversed", row=1, col=1)
    figure.update_traces(colorbar={"x": 0.28, "thickness": 10}, selector={"type": "heatmap"})
    return figure


def cluster_order(directions: Floats) -> NDArray[np.intp]:
    """Return indices in the order of hierarchical clustering by angle, so that similar directions are neighbours."""
    n = len(directions)
    if n < 3:
        return np.arange(n)
    distance = np.arccos(np.minimum(np.abs(directions @ directions.T), 1.0))
    np.fill_diagonal(distance, 0.0)
    tree = linkage(squareform(distance, checks=False), "average", optimal_ordering=n <= _OPTIMAL_ORDER)
    return np.asarray(leaves_list(tree), dtype=np.intp)


def cosines(found: Extraction) -> go.Figure:
    """Return a heat map of |cos| between directions in percent, ordered by clustering."""
    directions = found.directions[:MAX_FEATURES]
    order = cluster_order(directions)
    matrix = np.abs(directions[order] @ directions[order].T)
    names = [str(i) for i in order]
    figure = go.Figure(
        go.Heatmap(
            z=np.round(100 * matrix).astype(np.uint8),
            x=names,
            y=names,
            zmin=0,
            zmax=100,
            colorscale="Viridis",
            colorbar={"thickness": 10, "title": {"text": "%"}},
            hovertemplate="features %{x} and %{y}<br>|cos| %{z} %<extra></extra>",
        )
    )
    apply_style(figure, 380, margin={"t": 20, "b": 44, "l": 44, "r": 8})
    figure.update_xaxes(
        type="category", title="feature, similar ones side by side", nticks=9, tickangle=0, showgrid=False
    )
    figure.update_yaxes(type="category", autorange="reversed", nticks=9, tickangle=0, showgrid=False)
    return figure


def pair_angles(directions: Floats) -> Floats:
    """Return the (n(n−1)/2,) angles between all pairs of lines in degrees, at most 90."""
    i, j = np.triu_indices(len(directions), 1)
    return np.degrees(np.arccos(np.minimum(np.abs(directions @ directions.T)[i, j], 1.0)))


def angles(found: Extraction) -> go.Figure:
    """Return a histogram of the angles between pairs, and the curve sin^(d−2) expected for random directions."""
    degrees = pair_angles(found.directions[:MAX_FEATURES])
    edges = np.linspace(0, 90, 31)
    heights = np.histogram(degrees, edges)[0]
    middles = 0.5 * (edges[:-1] + edges[1:])
    figure = go.Figure(
        go.Bar(
            x=middles, y=heights, marker_color=PALETTE[0], hovertemplate="about %{x:.0f}°: %{y} pairs<extra></extra>"
        )
    )
    if found.dim > 1 and len(degrees):
        density = np.sin(np.radians(middles)) ** (found.dim - 2)
        expected = density / density.sum() * len(degrees)
        figure.add_scatter(
            x=middles, y=as_float32(expected), mode="lines", line={"color": PALETTE[1], "dash": "dot"}, hoverinfo="skip"
        )
    apply_style(figure, 380, bargap=0.05)
    figure.update_xaxes(title="angle between two directions, degrees", range=[0, 90], dtick=15)
    figure.update_yaxes(title="pairs")
    return figure


def used_dimensions(directions: Floats) -> int:
    """Return the numerical rank of the directions (n, d)."""
    if not len(directions):
        return 0
    sizes = np.linalg.svd(directions, compute_uv=False)
    return int(np.sum(sizes > _MIN_SINGULAR * sizes[0]))


def counts(found: Extraction) -> go.Figure:
    """Return bars for d, the rank of the directions, and n."""
    names = ["input dimensions d", "dimensions used", "features n"]
    values = [found.dim, used_dimensions(found.directions), len(found.features)]
    figure = go.Figure(
        go.Bar(
            x=values,
            y=names,
            orientation="h",
            text=[str(v) for v in values],
            textposition="auto",
            marker_color=[PALETTE[6], PALETTE[5], PALETTE[0]],
            hoverinfo="skip",
        )
    )
    apply_style(figure, 380, margin={"t": 28, "b": 48, "l": 130, "r": 16}, bargap=0.4)
    figure.update_yaxes(autorange="reversed", showgrid=False, ticksuffix=" ")
    return figure


def sentence(found: Extraction) -> str:
    """Return a sentence about the closest pair, and about the largest separation that n lines can have."""
    n, d = len(found.features), used_dimensions(found.directions)
    if n < 2:
        return "Angles between directions need at least two features."
    matrix = np.abs(found.directions @ found.directions.T)
    np.fill_diagonal(matrix, -1.0)
    i, j = np.unravel_index(int(np.argmax(matrix)), matrix.shape)
    nearest = np.degrees(np.arccos(min(matrix[i, j], 1.0)))
    words = f"{count_of(n, 'feature')} share {count_of(d, 'dimension')}: {n / max(d, 1):.2g} for each. "
    words += f"The closest pair, {i} and {j}, is {nearest:.1f}° apart"
    if n > d > 0:
        welch = np.degrees(np.arccos(np.sqrt((n - d) / (d * (n - 1)))))
        words += f"; no arrangement of {n} lines keeps all pairs more than {welch:.1f}° apart (Welch's bound)"
    return words + "."
