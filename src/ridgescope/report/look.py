"""What all figures share: colours, margins, and words that came from outside made harmless."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from ..feature import Feature
from ..result import Extraction

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#b3a100")
NIGHT = "#0d1020"
"""Behind the star, by day as well."""


def styled(figure: go.Figure, height: int, **layout: Any) -> go.Figure:
    """The common layout; backgrounds are clear, so that a page decides between light and dark."""
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
    figure.update_xaxes(gridcolor="rgba(128,128,128,.22)", zerolinecolor="rgba(128,128,128,.4)", title_standoff=6)
    figure.update_yaxes(gridcolor="rgba(128,128,128,.22)", zerolinecolor="rgba(128,128,128,.4)", title_standoff=6)
    return figure


def small(values: ArrayLike) -> NDArray[np.float32]:
    """Single precision: the eye needs no more, and the file is half as large."""
    with np.errstate(over="ignore"):
        return np.asarray(values, dtype=np.float32)


def named(feature: Feature) -> str:
    """The closed form of a feature, escaped, or a dash."""
    return escape(str(feature.shape)) if feature.shape is not None else "–"


def told(index: int, feature: Feature, most: int = 8) -> str:
    """A feature for a hover label: what it is, and its largest coordinates."""
    return (
        f"<b>feature {index}</b>: {named(feature)}<br>strength {feature.strength:.3g}, "
        f"± {feature.angle_error:.1e} rad<br>{coordinates(feature, most)}"
    )


def coordinates(feature: Feature, most: int = 8) -> str:
    """The largest coordinates of a direction, in order of size."""
    order = np.argsort(-np.abs(feature.direction), kind="stable")
    parts = [f"x{k} {feature.direction[k]:+.3f}" for k in order[:most]]
    lines = [", ".join(parts[i : i + 4]) for i in range(0, len(parts), 4)]
    more = f" … {len(order) - most} more" if len(order) > most else ""
    return "<br>".join(lines) + more


def counted(count: int, word: str) -> str:
    return f"{count:,} {word}{'s' * (count != 1)}"


def relative(found: Extraction) -> float:
    """One tolerance, in f's own units; 1 where f does not vary."""
    unit = found.certificate.tolerance * found.certificate.std
    return unit if np.isfinite(unit) and unit > 0 else 1.0
