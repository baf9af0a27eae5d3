"""The star of lines: in any plane, the Fourier transform of a sum of features is one ray for each feature.

On the plane y ↦ x₀ + Bᵀy a term s(v·x) becomes s(c + w·y) with w = Bv. Its transform is concentrated on the line
through 0 along w, with ŝ(ω) at ω·w. If the search took slices, its own spectra of f (after the first round, of the
residual) are shown. Otherwise it is the spectrum of the recovered model, which needs no query.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from ..feature import Plane
from ..geometry import Floats
from ..result import Extraction
from ..star_planes import MAX_PLANES, highest_frequency, planes_through_pairs, response_spectra
from .style import NIGHT, apply_style, as_float32, count_of, formula_html

_MAX_RAYS, _MAX_LABELS, _MIN_GAP = 60, 14, 0.09
"""Largest number of rays drawn and of rays with a number, and the smallest angle in radians between two numbers, so
that they do not overlap."""
_IN_PLANE = 1e-3
"""A feature with a smaller share of its direction in a plane has no visible ray there."""
_CELLS = 161
"""Number of cells along each axis of the model's spectrum; odd, so that one of them is frequency zero."""
_RAY_WIDTH, _RAY_CUT = 1.2, 4.0
"""Standard deviation of a ray's profile in cells, and number of standard deviations after which it counts as zero
(3e-4)."""
_DECADES = 2.2
"""Range of the colours in decades: weaker power is as dark as the background."""
_LABEL_RADIUS, _EDGE = 1.08, 1.16
"""Radius at which numbers stand and at which the axes end; rays end at 1."""
_RAY, _FAINT = "rgba(255,255,255,.85)", "rgba(255,255,255,.14)"
_COLOURS = [[0.0, NIGHT], [0.35, "#2b2f77"], [0.6, "#7b3fa0"], [0.8, "#e4572e"], [1.0, "#ffe9a8"]]


def star(found: Extraction, planes: Sequence[Plane]) -> go.Figure:
    """Return the planar Fourier power with the recovered rays over it, and a slider over the planes."""
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
    apply_style(figure, 640, margin={"t": 16, "b": 16, "l": 56, "r": 16}, sliders=[slider] if len(planes) > 1 else [])
    figure.update_xaxes(range=[-_EDGE, _EDGE], constrain="domain", title=_axis_title(planes[0]), zeroline=False)
    figure.update_yaxes(
        range=[-_EDGE, _EDGE],
        scaleanchor="x",
        constrain="domain",
        title="the same along the second axis",
        zeroline=False,
    )
    figure.update_layout(plot_bgcolor=NIGHT)
    figure.update_xaxes(showgrid=False, showticklabels=False, ticks="")
    figure.update_yaxes(showgrid=False, showticklabels=False, ticks="")
    return figure


def _axis_title(plane: Plane) -> str:
    """Return the title of the frequency axis with its range."""
    return f"frequency, up to ±{_centred(plane)[1][0][-1]:.3g} rad per unit"


def shown_planes(found: Extraction) -> tuple[Plane, ...]:
    """Return the planes of the search, first rounds first, or else of the recovered model; () if there can be none."""
    if found.planes:
        usable = [p for p in found.planes if min(p.power.shape) > 2 and np.isfinite(p.power).all()]
        return tuple(sorted(usable, key=lambda p: p.round)[:MAX_PLANES])
    if found.dim < 2 or not found.features:
        return ()
    return model_planes(found, planes_through_pairs(found.directions))


def model_planes(found: Extraction, bases: Sequence[Floats]) -> tuple[Plane, ...]:
    """Return |F| of the recovered features in the planes with these bases (2, d), each response tapered to zero at ±R.

    Under a wide Gaussian window exp(−|y|²/2L²) the ray of s(w·y) is |ŝ(a/|w|)|/|w| · exp(−L²b²/2), with a and b the
    parts of a frequency along and across w. Squares are added, since rays overlap only in the middle.
    """
    omega, every = response_spectra(found)
    cut = highest_frequency(omega, every)
    axis = np.linspace(-cut, cut, _CELLS)
    width = _RAY_WIDTH * cut / (_CELLS - 1) * 2.0
    planes = []
    for basis in bases:
        power = np.zeros((_CELLS, _CELLS))
        for w, spectrum in zip(found.directions @ basis.T, every, strict=True):
            length = float(np.linalg.norm(w))
            if length < _IN_PLANE:
                continue
            a = (w[0] * axis[:, None] + w[1] * axis[None, :]) / length
            b = (w[0] * axis[None, :] - w[1] * axis[:, None]) / length
            near = np.abs(b) < _RAY_CUT * width
            ray = np.interp(np.abs(a[near]) / length, omega, spectrum, right=0.0) / length
            power[near] += (ray * np.exp(-0.5 * (b[near] / width) ** 2)) ** 2
        planes.append(Plane(basis, np.sqrt(power), 2.0 * cut / (_CELLS - 1)))
    return tuple(planes)


def _power(plane: Plane, visible: bool) -> go.Heatmap:
    """Return a heat map of log |F|·|ω|; without the factor |ω| the middle, where all rays meet, would be too bright."""
    power, axes = _centred(plane)
    weighted = power * np.hypot(axes[0][:, None], axes[1][None, :])
    top = float(weighted.max()) or 1.0
    shade = np.log10(np.maximum(weighted / top, 10.0**-_DECADES))
    half = max(abs(axes[0][0]), abs(axes[0][-1]))
    return go.Heatmap(
        x=as_float32(axes[0] / half),
        y=as_float32(axes[1] / half),
        z=as_float32(shade.T),
        zmin=-_DECADES,
        zmax=0.0,
        zsmooth="best",
        colorscale=_COLOURS,
        showscale=False,
        visible=visible,
        hoverinfo="skip",
    )


def _centred(plane: Plane) -> tuple[Floats, tuple[Floats, Floats]]:
    """Return the power cropped to a square around frequency zero, and the frequencies of its two axes."""
    middles = [n // 2 for n in plane.power.shape]
    half = min(min(m, n - 1 - m) for m, n in zip(middles, plane.power.shape, strict=True))
    i, j = (slice(m - half, m + half + 1) for m in middles)
    omega = plane.step * np.arange(-half, half + 1)
    return np.asarray(plane.power[i, j], dtype=np.float64), (omega, omega)


def _rays(found: Extraction, plane: Plane, visible: bool) -> list[go.Scatter]:
    """Return dotted lines with numbers for the strongest rays whose numbers do not overlap, faint lines for others."""
    projected = found.directions[:_MAX_RAYS] @ plane.basis.T
    projected[projected[:, 1] < 0] *= -1.0
    length = np.linalg.norm(projected, axis=1)
    angles = np.arctan2(projected[:, 1], projected[:, 0])
    weight = length * np.array([f.strength for f in found.features[:_MAX_RAYS]])
    labelled = _labelled(angles, weight)
    faint = [i for i in range(len(angles)) if i not in labelled and length[i] > 1e-6]
    lines = [
        go.Scatter(
            x=_lines_through_zero(np.cos(angles[list(which)])),
            y=_lines_through_zero(np.sin(angles[list(which)])),
            mode="lines",
            line={"color": colour, "width": 1, "dash": dash},
            hoverinfo="skip",
            visible=visible,
        )
        for which, colour, dash in ((labelled, _RAY, "dot"), (faint, _FAINT, "solid"))
    ]
    at = angles[labelled]
    formulas = [formula_html(found.features[i]) for i in labelled]
    labels = go.Scatter(
        x=as_float32(_LABEL_RADIUS * np.cos(at)),
        y=as_float32(_LABEL_RADIUS * np.sin(at)),
        mode="text",
        text=[str(i) for i in labelled],
        textfont={"color": "#ffffff", "size": 13},
        hovertext=[
            f"feature {i}: {formula}<br>{length[i]:.0%} of its direction lies in this plane"
            for i, formula in zip(labelled, formulas, strict=True)
        ],
        hoverinfo="text",
        visible=visible,
    )
    return [*lines, labels]


def _lines_through_zero(ends: Floats) -> list[float | None]:
    """Return one coordinate of the lines from −end to end, with None after each line."""
    points: list[float | None] = []
    for end in ends:
        points += [round(-float(end), 4), round(float(end), 4), None]
    return points


def _labelled(angles: Floats, weight: Floats) -> list[int]:
    """Return the indices of the strongest rays whose numbers are far enough apart."""
    chosen: list[int] = []
    for i in np.argsort(-weight, kind="stable"):
        gaps = [abs((angles[i] - angles[j] + np.pi / 2) % np.pi - np.pi / 2) for j in chosen]
        if len(chosen) < _MAX_LABELS and weight[i] > 1e-9 and all(gap > _MIN_GAP for gap in gaps):
            chosen.append(int(i))
    return chosen


def caption(found: Extraction, planes: Sequence[Plane]) -> str:
    """Return two or three sentences about what the picture shows and how many queries were spent on it."""
    through = f"{count_of(len(planes), 'plane')}, each through two features, strongest first"
    asked = found.queries_by_stage.get("picture", 0)
    if asked:
        what = f"The Fourier power of f itself in {through}; {asked:,} queries were spent on it."
    elif found.planes:
        what = (
            f"The Fourier power that the search measured in {len(planes)} of {len(found.planes)} planes; later rounds "
            "measure the residual f − f̂."
        )
    else:
        what = (
            f"The search took no slices of f, so this is the Fourier power of the recovered model in {through}; no "
            "query was spent on it."
        )
    return (
        f"{what} Every feature is one ray, and a pure wave is a pair of dots on its ray; dotted lines are the "
        "recovered directions, numbered by strength."
    )
