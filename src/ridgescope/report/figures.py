"""Plotly figures of a result: how f responds to each feature, and how the features lie to each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..result import Extraction

MOST = 48
"""Responses drawn; the rest are in the table."""
_COLUMNS = 4


def responses(found: Extraction) -> Any:
    """A gallery of the strongest responses with bands of two standard errors; a vector output draws each component."""
    shown = found.features[:MOST]
    rows = max(1, -(-len(shown) // _COLUMNS))
    titles = [f"{i}: {f.shape or '–'}" for i, f in enumerate(shown)]
    figure = make_subplots(rows, _COLUMNS, subplot_titles=titles, vertical_spacing=0.35 / rows)
    z = np.linspace(-found.radius, found.radius, 201)
    for i, f in enumerate(shown):
        place = {"row": i // _COLUMNS + 1, "col": i % _COLUMNS + 1}
        values = f.response(z).reshape(len(z), -1)
        band = np.abs(f.band).reshape(len(f.band), -1)
        for k, y in enumerate(values.T[:12]):
            if len(band):
                spread = 2.0 * np.interp(z, np.linspace(-found.radius, found.radius, len(band)), band[:, k])
                ring = np.concatenate([y + spread, (y - spread)[::-1]])
                figure.add_scatter(
                    x=np.concatenate([z, z[::-1]]),
                    y=ring,
                    fill="toself",
                    line_width=0,
                    opacity=0.3,
                    hoverinfo="skip",
                    **place,
                )
            figure.add_scatter(x=z, y=y, mode="lines", name=f"feature {i}", **place)
        for t in f.response.kinks[np.abs(f.response.kinks) < found.radius]:
            figure.add_vline(x=float(t), line_dash="dot", line_width=1, **place)
    figure.update_layout(height=220 * rows + 60, showlegend=False, margin={"t": 40, "b": 30, "l": 40, "r": 20})
    figure.update_annotations(font_size=11)
    return figure


def geometry(found: Extraction) -> Any:
    """|cos| between directions: what is far from zero shares its dimensions with others."""
    cosines = np.abs(found.directions @ found.directions.T)
    figure = go.Figure(go.Heatmap(z=cosines, zmin=0, zmax=1, colorscale="Viridis"))
    figure.update_layout(height=420, width=480, margin={"t": 20, "b": 40, "l": 40, "r": 20})
    figure.update_yaxes(autorange="reversed", scaleanchor="x")
    return figure
