"""How the directions lie to each other: who shares dimensions with whom."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from ..geometry import Floats
from ..result import Extraction
from .look import PALETTE, counted, small, styled

MOST = 500
"""Features in the matrix; with more, the strongest."""


def geometry(found: Extraction) -> go.Figure:
    """|cos| between directions in percent, the angles between them, and their number against the dimensions."""
    parts = (cosines(found), angles(found), counts(found))
    titles = ("|cos| between directions", "angles between pairs", "features and dimensions")
    figure = make_subplots(1, 3, subplot_titles=titles, horizontal_spacing=0.1)
    for column, part in enumerate(parts, 1):
        figure.add_traces(part.data, rows=1, cols=column)
    styled(figure, 420, bargap=0.05)
    figure.update_yaxes(autorange="reversed", row=1, col=1)
    figure.update_traces(colorbar={"x": 0.28, "thickness": 10}, selector={"type": "heatmap"})
    return figure


def order_of(directions: Floats) -> NDArray[np.intp]:
    """An order in which directions that lie close together stand side by side."""
    n = len(directions)
    if n < 3:
        return np.arange(n)
    distance = np.arccos(np.minimum(np.abs(directions @ directions.T), 1.0))
    np.fill_diagonal(distance, 0.0)
    tree = linkage(squareform(distance, checks=False), "average", optimal_ordering=n <= 200)
    return np.asarray(leaves_list(tree), dtype=np.intp)


def cosines(found: Extraction) -> go.Figure:
    """The matrix of |cos| in percent, reordered by clustering."""
    directions = found.directions[:MOST]
    order = order_of(directions)
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
    styled(figure, 380, margin={"t": 20, "b": 44, "l": 44, "r": 8})
    figure.update_xaxes(type="category", title="feature, in order of likeness", nticks=9, tickangle=0, showgrid=False)
    figure.update_yaxes(type="category", autorange="reversed", nticks=9, tickangle=0, showgrid=False)
    return figure


def pair_angles(directions: Floats) -> Floats:
    """Degrees between all pairs, signs aside."""
    i, j = np.triu_indices(len(directions), 1)
    return np.degrees(np.arccos(np.minimum(np.abs(directions @ directions.T)[i, j], 1.0)))


def angles(found: Extraction) -> go.Figure:
    """Histogram of the angles between pairs; the curve is what directions drawn at random would give."""
    degrees = pair_angles(found.directions[:MOST])
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
            x=middles, y=small(expected), mode="lines", line={"color": PALETTE[1], "dash": "dot"}, hoverinfo="skip"
        )
    styled(figure, 380, bargap=0.05)
    figure.update_xaxes(title="angle between two directions, degrees", range=[0, 90], dtick=15)
    figure.update_yaxes(title="pairs")
    return figure


def used_dimensions(directions: Floats) -> int:
    """Dimensions that the directions span, those aside in which they hardly move."""
    if not len(directions):
        return 0
    sizes = np.linalg.svd(directions, compute_uv=False)
    return int(np.sum(sizes > 1e-3 * sizes[0]))


def counts(found: Extraction) -> go.Figure:
    """n against d, and the dimensions that the features use."""
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
    styled(figure, 380, margin={"t": 28, "b": 48, "l": 130, "r": 16}, bargap=0.4)
    figure.update_yaxes(autorange="reversed", showgrid=False, ticksuffix=" ")
    return figure


def sentence(found: Extraction) -> str:
    """The closest pair, and how far apart so many lines could be at best."""
    n, d = len(found.features), used_dimensions(found.directions)
    if n < 2:
        return "One feature has nothing to share its dimensions with."
    matrix = np.abs(found.directions @ found.directions.T)
    np.fill_diagonal(matrix, -1.0)
    i, j = np.unravel_index(int(np.argmax(matrix)), matrix.shape)
    nearest = np.degrees(np.arccos(min(matrix[i, j], 1.0)))
    words = f"{counted(n, 'feature')} share {counted(d, 'dimension')}: {n / max(d, 1):.2g} to each. "
    words += f"The closest pair, {i} and {j}, is {nearest:.1f}° apart"
    if n > d > 0:
        welch = np.degrees(np.arccos(np.sqrt((n - d) / (d * (n - 1)))))
        words += f"; no arrangement of {n} lines keeps all pairs more than {welch:.1f}° apart (Welch's bound)"
    return words + "."
