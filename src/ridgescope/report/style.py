"""What all figures share: colours, layout, number formats, and escaping of text from outside."""

from __future__ import annotations

import math
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray
from plotly.subplots import make_subplots

from ..feature import Feature, leading_coordinates
from ..result import Extraction

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#b3a100")
"""Okabe and Ito's colours, which colour-blind readers can distinguish, and two more."""
MAX_FEATURES, COLUMNS = 48, 4
"""Largest number of features in a figure of small plots, and how many stand side by side; the page shows all."""
MAX_COORDINATES = 64
"""Largest number of coordinates of a direction that a card lists, largest first."""
BAND = 2.0
"""Half the width of an error band in standard errors."""
NIGHT = "#0d1020"
"""Background colour of the star, on light pages as well."""
_GRID_LINES, _ZERO_LINES = "rgba(128,128,128,.22)", "rgba(128,128,128,.4)"


def apply_style(figure: go.Figure, height: int, **layout: Any) -> go.Figure:
    """Give `figure` the common layout, with a transparent background so that the page sets light or dark; return it."""
    figure.update_layout(
        template="none",
        height=height,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 12},
        margin={"t": 28, "b": 48, "l": 60, "r": 16},
        showlegend=False,
        hoverlabel={"align": "left"},
    )
    figure.update_layout(**layout)
    figure.update_xaxes(gridcolor=_GRID_LINES, zerolinecolor=_ZERO_LINES, title_standoff=6)
    figure.update_yaxes(gridcolor=_GRID_LINES, zerolinecolor=_ZERO_LINES, title_standoff=6)
    return figure


def side_by_side(parts: dict[str, go.Figure], **layout: Any) -> go.Figure:
    """Return one row with the traces of several figures, each under its title."""
    figure = make_subplots(1, len(parts), subplot_titles=list(parts), horizontal_spacing=0.1)
    for column, part in enumerate(parts.values(), 1):
        figure.add_traces(part.data, rows=1, cols=column)
    return apply_style(figure, 420, **layout)


def as_float32(values: ArrayLike) -> NDArray[np.float32]:
    """Return the values in single precision, which is enough to draw and halves the size of the file."""
    with np.errstate(over="ignore"):
        return np.asarray(values, dtype=np.float32)


def formula_html(feature: Feature) -> str:
    """Return the closed form of a feature, escaped, or a dash if it has none."""
    return escape(str(feature.shape)) if feature.shape is not None else "–"


def hover_text(index: int, feature: Feature, max_coordinates: int = 8) -> str:
    """Return HTML for a hover label: formula, strength, angle error and the largest coordinates of the direction."""
    order = np.argsort(-np.abs(feature.direction), kind="stable")
    carrier = f"<br>gated, u = {leading_coordinates(feature.gate.carrier)}" if feature.gate is not None else ""
    parts = [f"x{k} {feature.direction[k]:+.3f}" for k in order[:max_coordinates]]
    lines = [", ".join(parts[i : i + 4]) for i in range(0, len(parts), 4)]
    more = f" … {len(order) - max_coordinates} more" if len(order) > max_coordinates else ""
    return (
        f"<b>feature {index}</b>: {formula_html(feature)}<br>strength {feature.strength:.3g}, "
        f"± {feature.angle_error:.1e} rad<br>{'<br>'.join(lines)}{more}{carrier}"
    )


def rounded(values: Any, digits: int = 5) -> Any:
    """Return a number, or a list for an array, rounded to significant digits; None for numbers that are not finite."""
    if isinstance(values, np.ndarray) and values.ndim:
        return [rounded(v, digits) for v in values.tolist()]
    number = float(f"{float(values):.{digits}g}")  # rounding the largest floats overflows
    return number if math.isfinite(number) else None


def count_of(count: int, noun: str, plural: str | None = None) -> str:
    """Return a count with its noun, as in `1 feature` or `1,234 features`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def tolerance_in_units(found: Extraction) -> float:
    """Return the tolerance in f's own units; 1 if f does not vary."""
    value = found.certificate.tolerance * found.certificate.std
    return value if np.isfinite(value) and value > 0 else 1.0
