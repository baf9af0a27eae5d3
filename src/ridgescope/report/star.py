"""The star of lines: in any plane, the Fourier transform of a sum of features is one ray for each feature.

On the plane y ↦ x₀ + Bᵀy a term s(v·x) becomes s(c + w·y) with w = Bv, whose transform lives on the line through
0 along w, with ŝ(ω) at ω·w. Where the search looked at planes, its own pictures of f (or, after the first round, of
what the model left of f) are shown. Where it did not, the recovered model is looked at, which asks nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from ..feature import Plane
from ..geometry import Floats
from ..picture import highest_frequency, spectra, through_pairs
from ..result import Extraction
from .look import NIGHT, named, small, styled

MOST_PLANES, MOST_LABELS, MOST_RAYS = 8, 14, 60
_CELLS = 161
_DECADES = 2.2
_RAY, _FAINT = "rgba(255,255,255,.85)", "rgba(255,255,255,.14)"


def star(found: Extraction, planes: Sequence[Plane]) -> go.Figure:
    """Planar Fourier power, with the recovered rays over it and a slider over the planes."""
    figure = go.Figure()
    for k, plane in enumerate(planes):
        figure.add_traces([_power(plane, k == 0), *_rays(found, plane, k == 0)])
    per = len(figure.data) // len(planes)
    steps = [
        {
            "method": "update",
            "label": f"{k + 1}",
            "args": [
                {"visible": [j // per == k for j in range(len(figure.data))]},
                {"xaxis.title.text": _axis_title(plane)},
            ],
        }
        for k, plane in enumerate(planes)
    ]
    slider = {"steps": steps, "currentvalue": {"prefix": "plane "}, "pad": {"t": 44}, "len": 0.86, "x": 0.07}
    styled(figure, 640, margin={"t": 16, "b": 16, "l": 56, "r": 16}, sliders=[slider] if len(planes) > 1 else [])
    edge = 1.16
    figure.update_xaxes(range=[-edge, edge], constrain="domain", title=_axis_title(planes[0]), zeroline=False)
    figure.update_yaxes(
        range=[-edge, edge], scaleanchor="x", constrain="domain", title="the same along the second axis", zeroline=False
    )
    figure.update_layout(plot_bgcolor=NIGHT)
    figure.update_xaxes(showgrid=False, showticklabels=False, ticks="")
    figure.update_yaxes(showgrid=False, showticklabels=False, ticks="")
    return figure


def _axis_title(plane: Plane) -> str:
    return f"frequency, up to ±{_centred(plane)[1][0][-1]:.3g} rad per unit"


def shown_planes(found: Extraction) -> tuple[Plane, ...]:
    """The search's planes, first rounds first, or some of the recovered model."""
    if found.planes:
        usable = [p for p in found.planes if min(p.power.shape) > 2 and np.isfinite(p.power).all()]
        return tuple(sorted(usable, key=lambda p: p.round)[:MOST_PLANES])
    if found.dim < 2 or not found.features:
        return ()
    return model_planes(found, through_pairs(found.directions, MOST_PLANES))


def model_planes(found: Extraction, bases: Sequence[Floats]) -> tuple[Plane, ...]:
    """|F| of the recovered features, each response tapered to zero at ±R.

    Under a wide Gaussian window exp(−|y|²/2L²) the ray of s(w·y) is |ŝ(a/|w|)|/|w| · exp(−L²b²/2), with a and b the
    parts of a frequency along and across w. Squares are added: rays overlap only in the middle.
    """
    omega, every = spectra(found)
    cut = highest_frequency(omega, every)
    axis = np.linspace(-cut, cut, _CELLS)
    across = 1.2 * cut / (_CELLS - 1) * 2.0
    planes = []
    for basis in bases:
        power = np.zeros((_CELLS, _CELLS))
        for w, spectrum in zip(found.directions @ basis.T, every, strict=True):
            length = float(np.linalg.norm(w))
            if length < 1e-3:
                continue
            a = (w[0] * axis[:, None] + w[1] * axis[None, :]) / length
            b = (w[0] * axis[None, :] - w[1] * axis[:, None]) / length
            near = np.abs(b) < 4.0 * across
            ray = np.interp(np.abs(a[near]) / length, omega, spectrum, right=0.0) / length
            power[near] += (ray * np.exp(-0.5 * (b[near] / across) ** 2)) ** 2
        planes.append(Plane(basis, np.sqrt(power), 2.0 * cut / (_CELLS - 1)))
    return tuple(planes)


def _power(plane: Plane, visible: bool) -> go.Heatmap:
    """log |F|·|ω|: the factor |ω| lifts the rays out of the glare at the middle, where all of them meet."""
    power, axes = _centred(plane)
    lifted = power * np.hypot(axes[0][:, None], axes[1][None, :])
    top = float(lifted.max()) or 1.0
    shade = np.log10(np.maximum(lifted / top, 10.0**-_DECADES))
    half = max(abs(axes[0][0]), abs(axes[0][-1]))
    return go.Heatmap(
        x=small(axes[0] / half),
        y=small(axes[1] / half),
        z=small(shade.T),
        zmin=-_DECADES,
        zmax=0.0,
        zsmooth="best",
        colorscale=[[0.0, NIGHT], [0.35, "#2b2f77"], [0.6, "#7b3fa0"], [0.8, "#e4572e"], [1.0, "#ffe9a8"]],
        showscale=False,
        visible=visible,
        hoverinfo="skip",
    )


def _centred(plane: Plane) -> tuple[Floats, tuple[Floats, Floats]]:
    """Power without what lies beyond the smaller half, and the frequencies of its two axes."""
    middles = [n // 2 for n in plane.power.shape]
    half = min(min(m, n - 1 - m) for m, n in zip(middles, plane.power.shape, strict=True))
    i, j = (slice(m - half, m + half + 1) for m in middles)
    omega = plane.step * np.arange(-half, half + 1)
    return np.asarray(plane.power[i, j], dtype=np.float64), (omega, omega)


def _rays(found: Extraction, plane: Plane, visible: bool) -> list[go.Scatter]:
    """Faint lines for all, bright ones with a number for the strongest that do not crowd each other."""
    projected = found.directions[:MOST_RAYS] @ plane.basis.T
    projected[projected[:, 1] < 0] *= -1.0
    length = np.linalg.norm(projected, axis=1)
    angles = np.arctan2(projected[:, 1], projected[:, 0])
    weight = length * np.array([f.strength for f in found.features[:MOST_RAYS]])
    labelled = _uncrowded(angles, weight)
    faint = [i for i in range(len(angles)) if i not in labelled and length[i] > 1e-6]
    lines = [
        go.Scatter(
            x=_both_ways(np.cos(angles[list(which)])),
            y=_both_ways(np.sin(angles[list(which)])),
            mode="lines",
            line={"color": colour, "width": 1, "dash": dash},
            hoverinfo="skip",
            visible=visible,
        )
        for which, colour, dash in ((labelled, _RAY, "dot"), (faint, _FAINT, "solid"))
    ]
    at = angles[labelled]
    labels = go.Scatter(
        x=small(1.08 * np.cos(at)),
        y=small(1.08 * np.sin(at)),
        mode="text",
        text=[str(i) for i in labelled],
        textfont={"color": "#ffffff", "size": 13},
        hovertext=[
            f"feature {i}: {named(found.features[i])}<br>{length[i]:.0%} of it lies in this plane" for i in labelled
        ],
        hoverinfo="text",
        visible=visible,
    )
    return [*lines, labels]


def _both_ways(ends: Floats) -> list[float | None]:
    """From −1 to 1 along each ray, with a gap after each."""
    points: list[float | None] = []
    for end in ends:
        points += [round(-float(end), 4), round(float(end), 4), None]
    return points


def _uncrowded(angles: Floats, weight: Floats, apart: float = 0.09) -> list[int]:
    """The heaviest rays whose labels keep so many radians from each other."""
    chosen: list[int] = []
    for i in np.argsort(-weight, kind="stable"):
        gaps = [abs((angles[i] - angles[j] + np.pi / 2) % np.pi - np.pi / 2) for j in chosen]
        if len(chosen) < MOST_LABELS and weight[i] > 1e-9 and all(gap > apart for gap in gaps):
            chosen.append(int(i))
    return chosen


def caption(found: Extraction, planes: Sequence[Plane]) -> str:
    """What the picture shows, in a sentence or two."""
    through = f"{len(planes)} plane{'s' * (len(planes) != 1)}, each through two features, strongest first"
    asked = found.queries_by_stage.get("picture", 0)
    if asked:
        what = f"The Fourier power of f itself in {through}; {asked:,} queries were spent on it."
    elif found.planes:
        what = (
            f"The power that the search saw in {len(planes)} of {len(found.planes)} planes; later rounds see what the "
            "model had left of f."
        )
    else:
        what = f"The search looked at no planes, so this is the recovered model in {through}; no query was spent on it."
    return (
        f"{what} Every feature is one ray, a pure wave a pair of dots on its ray; dotted lines are the recovered "
        "directions, numbered by strength."
    )
