"""The response along each direction with its error band and kinks, as a grid of plots and as the page's cards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from ..feature import Feature
from ..geometry import Floats, leading_sign
from ..result import Extraction
from .gains import gated_card
from .style import (
    BAND,
    COLUMNS,
    MAX_COORDINATES,
    MAX_FEATURES,
    PALETTE,
    apply_style,
    as_float32,
    formula_html,
    hover_text,
    rounded,
)

MAX_OUTPUTS = 6
"""Largest number of outputs drawn for one feature: those that it changes most. The page's script has as many
colours."""
_POINTS, _MIN_POINTS = 81, 25
"""Number of grid points of a curve, and the smallest number if there are many features."""
_NUMBERS = 160_000
"""Number of values that all cards together may hold: a megabyte or two of text."""
_SVD_POINTS = 65
"""Number of grid points from which the output direction of a feature is computed."""
_TITLE = 34
"""Number of characters of a formula that fit over a small plot."""


@dataclass(frozen=True, eq=False)
class Curves:
    """One feature as sampled curves."""

    z: Floats
    """(m,) points in [−R, R]."""
    values: Floats
    """(m, k) values of the response, for the k outputs shown."""
    band: Floats
    """(m, k) two standard errors; zeros if they are not known."""
    outputs: NDArray[np.intp]
    """(k,) indices of the outputs shown."""
    kinks: Floats
    """Positions of the kinks inside [−R, R]."""


def curves(found: Extraction, feature: Feature, points: int = _POINTS) -> Curves:
    """Return the response on a uniform grid of `points` points, to which its kinks are added."""
    radius = found.radius
    kinks = feature.response.kinks[np.abs(feature.response.kinks) < radius]
    z = np.union1d(np.linspace(-radius, radius, points), kinks)
    values = feature.response(z).reshape(len(z), -1)
    outputs = np.sort(np.argsort(-np.ptp(values, axis=0), kind="stable")[:MAX_OUTPUTS])
    band = np.zeros_like(values)
    if len(feature.band):
        errors = np.abs(feature.band).reshape(len(feature.band), -1)
        grid = np.linspace(-radius, radius, len(errors))
        band = BAND * np.stack([np.interp(z, grid, e) for e in errors.T], axis=1)
    return Curves(z, values[:, outputs], band[:, outputs], outputs, kinks)


def output_direction(found: Extraction, feature: Feature) -> tuple[Floats, float]:
    """Return the unit vector (p,) of outputs along which a feature varies most, and its share of the sum of squares."""
    z = np.linspace(-found.radius, found.radius, _SVD_POINTS)
    values = feature.response(z).reshape(len(z), -1)
    if feature.gate is not None:
        values = np.concatenate([values, found.radius * feature.gate.gain(z).reshape(len(z), -1)])
    if not np.isfinite(values).all() or not values.any():
        return np.zeros(values.shape[1]), 0.0
    sizes, rows = np.linalg.svd(values, full_matrices=False)[1:]
    row = rows[0] * leading_sign(rows[0])
    return row, float(sizes[0] ** 2 / np.sum(sizes**2))


def responses(found: Extraction) -> go.Figure:
    """Return small plots of the strongest responses with their error bands, with one line for each output."""
    shown = found.features[:MAX_FEATURES]
    rows = max(1, -(-len(shown) // COLUMNS))
    titles = [f"{i}{' (gated)' * f.gated}: {_short(formula_html(f))}" for i, f in enumerate(shown)]
    figure = make_subplots(rows, COLUMNS, subplot_titles=titles, vertical_spacing=0.35 / rows)
    for i, f in enumerate(shown):
        place = {"row": i // COLUMNS + 1, "col": i % COLUMNS + 1}
        drawn = curves(found, f)
        for k, output in enumerate(drawn.outputs):
            colour = PALETTE[k % len(PALETTE)]
            y, band = drawn.values[:, k], drawn.band[:, k]
            if band.any():
                figure.add_scatter(
                    x=as_float32(np.concatenate([drawn.z, drawn.z[::-1]])),
                    y=as_float32(np.concatenate([y + band, (y - band)[::-1]])),
                    fill="toself",
                    fillcolor=colour,
                    line_width=0,
                    opacity=0.3,
                    mode="none",
                    hoverinfo="skip",
                    **place,
                )
            figure.add_scatter(
                x=as_float32(drawn.z),
                y=as_float32(y),
                mode="lines",
                line={"color": colour, "width": 2},
                name=f"feature {i}, output {output}",
                hovertemplate=f"{hover_text(i, f)}<br>s(%{{x:.2f}}) = %{{y:.4g}}<extra>output {output}</extra>",
                **place,
            )
        for t in drawn.kinks:
            figure.add_vline(x=float(t), line_dash="dot", line_width=1, **place)
    apply_style(figure, 220 * rows + 60, margin={"t": 40, "b": 30, "l": 40, "r": 20})
    figure.update_annotations(font_size=11)
    return figure


def _short(text: str) -> str:
    """Return escaped text cut to the length of a title, but not within an HTML entity."""
    return text if len(text) <= _TITLE else text[: _TITLE - 1].rsplit("&", 1)[0] + "…"


def cards(found: Extraction) -> list[dict[str, Any]]:
    """Return the data of the page's cards as JSON values, with fewer grid points for many features or outputs."""
    shown = min(found.outputs or 1, MAX_OUTPUTS)
    each = _NUMBERS // max(len(found.features), 1)
    points = int(np.clip(each // (2 * shown + 1), _MIN_POINTS, _POINTS))
    return [_card(found, i, f, points) for i, f in enumerate(found.features)]


def _card(found: Extraction, index: int, f: Feature, points: int) -> dict[str, Any]:
    """Return the data of one card; arrays are rounded to keep the page small."""
    drawn = curves(found, f, points)
    order = np.argsort(-np.abs(f.direction), kind="stable")[:MAX_COORDINATES]
    card: dict[str, Any] = {
        "i": index,
        "strength": rounded(f.strength),
        "angle": rounded(f.angle_error),
        "shape": f.shape.name if f.shape is not None else "",
        "formula": str(f.shape) if f.shape is not None else "",
        "r2": rounded(f.shape.r2, 6) if f.shape is not None else None,
        "kinks": rounded(drawn.kinks),
        "z": rounded(drawn.z, 4),
        "s": [rounded(y, 4) for y in drawn.values.T],
        "outputs": drawn.outputs.tolist(),
        "where": order.tolist(),
        "direction": rounded(f.direction[order], 4),
        "rest": len(f.direction) - len(order),
    }
    if f.gate is not None:
        card |= gated_card(found, f, f.gate, points)
    elif drawn.band.any():
        card["band"] = [rounded(b, 2) for b in drawn.band.T]
    if found.outputs is not None:
        row, share = output_direction(found, f)
        largest = np.argsort(-np.abs(row), kind="stable")[:MAX_COORDINATES]
        card |= {"out_where": largest.tolist(), "out": rounded(row[largest], 4), "out_share": rounded(share, 4)}
    return card
