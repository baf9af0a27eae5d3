"""Where the queries went, and what each round brought for them."""

from __future__ import annotations

from html import escape

import numpy as np
import plotly.graph_objects as go

from ..result import Extraction, Round
from .look import PALETTE, styled

_NOTHING_YET = Round(0, "nothing yet", 0, 0, 0, 1.0)


def by_stage(found: Extraction) -> go.Figure:
    """Queries of each stage, largest first."""
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
    styled(figure, max(260, 90 + 30 * len(stages)), margin={"t": 12, "b": 44, "l": 90, "r": 16}, bargap=0.25)
    figure.update_xaxes(title="queries", nticks=6)
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False, ticksuffix=" ")
    return figure


def by_round(found: Extraction) -> go.Figure:
    """The residual that each round left, over the queries spent by then."""
    rounds = [_NOTHING_YET, *(r for r in found.history if np.isfinite(r.residual))]
    figure = go.Figure(
        go.Scatter(
            x=[r.queries for r in rounds],
            y=[max(r.residual, 1e-12) for r in rounds],
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
        figure.add_scatter(
            x=ends, y=[tolerance] * 2, mode="lines", line={"color": PALETTE[1], "dash": "dash"}, hoverinfo="skip"
        )
    styled(figure, 260, margin={"t": 20, "b": 48, "l": 64, "r": 16})
    figure.update_xaxes(title="queries spent", rangemode="tozero", nticks=6)
    figure.update_yaxes(title="residual of f's deviation", type="log", dtick=1, exponentformat="power")
    return figure
