"""Gated features s(v·x) + t(v·x)(u·x): response and gain along the output direction, as plots and for the page's cards.

The gate listens to v and lets through t(v·x) of the carrier u·x. A feature that writes to several outputs is drawn
along its unit output vector o, to which a gated unit of a network writes alone: s·o and t·o, with one curve each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..errors import InvalidInput
from ..feature import Feature, Gate, leading_coordinates
from ..geometry import Floats
from ..response import Response
from ..result import Extraction
from .style import BAND, COLUMNS, MAX_COORDINATES, MAX_FEATURES, PALETTE, apply_style, as_float32, rounded

_POINTS = 81
"""Number of grid points of a curve."""


@dataclass(frozen=True, eq=False)
class Along:
    """A function of v·x along the output vector of its feature, as a sampled curve."""

    z: Floats
    """(m,) points in [−R, R], kinks among them."""
    values: Floats
    """(m,) values along the output vector."""
    band: Floats
    """(m,) two standard errors; zeros if they are not known."""
    kinks: Floats
    """Positions of the kinks inside [−R, R]."""


def along_output(function: Response, band: Floats, output: Floats, points: int = _POINTS) -> Along:
    """Return a response or gain along the unit vector `output` (p,), with its band of standard errors (G,) or (G, p).

    Errors of several outputs are added in size: how they are correlated is not known.
    """
    radius = function.radius
    kinks = function.kinks[np.abs(function.kinks) < radius]
    z = np.union1d(np.linspace(-radius, radius, points), kinks)
    wide = np.zeros(len(z))
    if len(band):
        errors = np.abs(band).reshape(len(band), -1) @ np.abs(output)
        wide = BAND * np.interp(z, np.linspace(-radius, radius, len(errors)), errors)
    return Along(z, function(z).reshape(len(z), -1) @ output, wide, kinks)


def gated_card(found: Extraction, f: Feature, gate: Gate, points: int) -> dict[str, Any]:
    """Return what the card of a gated feature has in place of, and beside, what that of a plain one has."""
    s = along_output(f.response, f.band, f.output, points)
    t = along_output(gate.gain, gate.band, f.output, points)
    order = np.argsort(-np.abs(gate.carrier), kind="stable")[:MAX_COORDINATES]
    card: dict[str, Any] = {
        "z": rounded(s.z, 4),
        "s": [rounded(s.values, 4)],
        "outputs": [],
        "tz": rounded(t.z, 4),
        "t": rounded(t.values, 4),
        "u_where": order.tolist(),
        "u": rounded(gate.carrier[order], 4),
        "u_rest": len(gate.carrier) - len(order),
        "u_error": rounded(gate.carrier_error),
        "v_text": leading_coordinates(f.direction),
        "u_text": leading_coordinates(gate.carrier),
    }
    if np.isfinite(s.band).all() and s.band.any():
        card["band"] = [rounded(s.band, 2)]
    if np.isfinite(t.band).all() and t.band.any():
        card["t_band"] = rounded(t.band, 2)
    if found.outputs is not None:
        card["o_text"] = leading_coordinates(f.output, letter="y")
    return card


def gains(found: Extraction) -> go.Figure:
    """Return small plots of the gains of the strongest gated features with their error bands."""
    shown = [(i, f, f.gate) for i, f in enumerate(found.features) if f.gate is not None][:MAX_FEATURES]
    if not shown:
        raise InvalidInput("no feature of this result is gated; plot.responses() draws the responses")
    rows = -(-len(shown) // COLUMNS)
    titles = [f"{i}: t(z) of {leading_coordinates(gate.carrier, 2)}" for i, _, gate in shown]
    figure = make_subplots(rows, COLUMNS, subplot_titles=titles, vertical_spacing=0.35 / rows)
    for at, (i, f, gate) in enumerate(shown):
        place = {"row": at // COLUMNS + 1, "col": at % COLUMNS + 1}
        drawn = along_output(gate.gain, gate.band, f.output)
        if np.isfinite(drawn.band).all() and drawn.band.any():
            figure.add_scatter(
                x=as_float32(np.concatenate([drawn.z, drawn.z[::-1]])),
                y=as_float32(np.concatenate([drawn.values + drawn.band, (drawn.values - drawn.band)[::-1]])),
                fill="toself",
                fillcolor=PALETTE[1],
                line_width=0,
                opacity=0.3,
                mode="none",
                hoverinfo="skip",
                **place,
            )
        figure.add_scatter(
            x=as_float32(drawn.z),
            y=as_float32(drawn.values),
            mode="lines",
            line={"color": PALETTE[1], "width": 2},
            name=f"feature {i}",
            hovertemplate=f"{_about(found, i, f, gate)}<br>t(%{{x:.2f}}) = %{{y:.4g}}<extra></extra>",
            **place,
        )
        for kink in drawn.kinks:
            figure.add_vline(x=float(kink), line_dash="dot", line_width=1, **place)
    apply_style(figure, 220 * rows + 60, margin={"t": 40, "b": 30, "l": 40, "r": 20})
    figure.update_annotations(font_size=11)
    return figure


def _about(found: Extraction, index: int, f: Feature, gate: Gate) -> str:
    """Return HTML for a hover label: what the gate listens to, what it lets through, and where that goes."""
    lines = [
        f"<b>gate {index}</b>: lets through t(v·x) of u·x",
        f"v = {leading_coordinates(f.direction)}",
        f"u = {leading_coordinates(gate.carrier)}, ± {gate.carrier_error:.1e} rad",
    ]
    if found.outputs is not None:
        lines.append(f"along {leading_coordinates(f.output, letter='y')}")
    return "<br>".join(lines)
