"""Find the closed form that explains a response, if there is one, and write it as a formula.

A response is known up to an affine part, and without it some families coincide: relu, leaky relu and abs are all
c|z − t| ("relu"); sigmoid is tanh of half the argument ("tanh"); log cosh is softplus. Only one name of each is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp, log, pi, sqrt

import numpy as np

from ..feature import Shape
from ..geometry import Floats, leading_sign
from ..response import Response
from .families import (
    FAMILIES,
    GROUP_ATOM,
    RISE,
    Family,
    Placement,
    Points,
    grid_of,
    orthonormal_columns,
    point_count,
    sample_points,
    spline_space,
)
from .fitting import SIGNIFICANT, ShapeFit, ShapeProblem, fit_family, fit_from, fit_polynomials

EXACTNESS = 1 / 300
"""Relative accuracy of a response at best. Three times this is the 1 % of the default tolerance."""
GRID_MISFIT = 0.5
"""Share of a response's RMS that a group's best grid atom may leave unexplained for its families to be worth a fit. The
grid is so dense that random members of a family usually leave 0.1, and less than this in 99 cases of 100.
"""
STEEP = 9.0
"""κ above which a sigmoid is called a step: nine tenths of its rise (tanh ±1.5 = ±0.905) take a sixth of [−R, R]."""
_FEW_CELLS = 64  # on which responses are compared with forms at first; fewer would need as many points
_NOT_SEEN = 0.01  # of σ: more cells are taken where these leave more of a response
_KINKED = ("relu", "clip", "triangle")  # of some of their members, with kinks near ±R, the best grid atom leaves 0.9
_EXPLAINED = 0.1  # of σ: a fit with a smaller misfit cannot be beaten by one with as many parameters
_ROUNDING = 1e-10  # of the largest coefficient: a response below it is zero
_INVISIBLE = 5e-4  # relative: changes that three digits do not show


Known = tuple[Family, Placement]
"""A closed form that a response is known to have, from the fit that made it."""


def name_shape(response: Response, noise: float = 0.0, known: Known | None = None) -> Shape | None:
    """Return the closed form that explains a response, or None; `noise` is the standard error of the response's values.

    A form that is `known` is tried first. If it explains the response, only those of fewer parameters are tried, too.

    A vector-valued response is named by its leading singular vector over z, of either sign, if that explains it.

    A form is acceptable if its RMS misfit is at most 3σ, σ = max(noise, RMS/300): the response is known no better
    than its standard error, and a fit to the default tolerance of 1 % supports no more. The part of the form that the
    response's cells cannot represent (a kink between two knots) may add to it. Acceptable forms are compared by

        N·(residual/σ)² + (number of parameters)·log N,      N = K + 3 coefficients of the spline.

    Of those within log N of the smallest, which the data do not distinguish, the simplest is named. A response that is
    itself within 3·noise of affine has no name.
    """
    return _named(response, noise, known)[0]


def name_shapes(responses: list[Response], noises: list[float], known: list[Known | None]) -> list[Shape | None]:
    """Return the closed form of each response, and the same family for all that it explains.

    The responses of a layer are of one family. So where half of the names or more are of one, it also names the others
    that it explains to their errors, but for those of which the joint fit knows better.
    """
    given = list(zip(responses, noises, known, strict=True))
    named = [_named(*one) for one in given]
    shapes = [shape for shape, _ in named]
    counts = Counter(family for _, family in named if family is not None).most_common(1)
    if not counts or 2 * counts[0][1] < len(named):
        return shapes
    common = counts[0][0]
    form = next((family for family in FAMILIES if family.name == common), None)  # a polynomial is none
    for i, (response, noise, form_of_fit) in enumerate(given):
        settled = named[i][1] == common or (form_of_fit is not None and form_of_fit[0].name == named[i][1])
        fit = None if settled or form is None else fit_as(response, noise, form)
        if fit is not None:
            shapes[i] = _shape(fit, _Case.of(response, noise), response.radius)
    return shapes


def fit_as(response: Response, noise: float, family: Family) -> ShapeFit | None:
    """Return the member of a family that explains a response to its errors, as in `name_shape`; None if none does."""
    case = _Case.of(response, noise)
    if case.is_nameless or family.group not in GROUP_ATOM or family.parameters >= len(case.problem.target):
        return None
    grid = grid_of(family.group, len(case.values))
    if family.name not in _KINKED and grid.unexplained(case.values) > GRID_MISFIT**2:
        return None
    places = grid.many(case.values)
    if family not in FAMILIES:  # some of those without a name differ for v and −v
        places = [turned for place in places for turned in (place, replace(place, sign=-place.sign))]
    fit = fit_family(case.problem, family, places, all_starts=True)
    return fit if fit.is_acceptable(case.problem.sigma) else None


@dataclass(frozen=True, eq=False)
class _Case:
    """A response as it is to be explained."""

    problem: ShapeProblem
    values: Floats
    """(M,) the leading combination of its outputs, without affine part."""
    total: float
    """Mean square of all outputs."""
    outside: float
    """The part of it that the leading combination leaves."""
    is_nameless: bool
    """It is within its errors of affine, or writes to more than one vector."""

    @classmethod
    def of(cls, response: Response, noise: float) -> _Case:
        """Compare the response with forms on as few cells as it shows no finer detail than."""
        kinks = _kinks_inside(response)
        cells = min(response.intervals, _FEW_CELLS)
        while True:
            points = sample_points(point_count(cells))
            values, total = _leading(points, response)
            sigma = max(noise, EXACTNESS * sqrt(total))
            problem = _problem(points, kinks, values, cells, sigma)
            finer = float(values @ values) - float(problem.target @ problem.target)
            if cells >= response.intervals or finer <= (_NOT_SEEN * sigma) ** 2:
                break
            cells = min(2 * cells, response.intervals)
        outside = max(total - float(values @ values), 0.0)
        rounding = _ROUNDING * float(np.abs(response.coefficients).max(initial=0.0))
        nameless = sqrt(total) <= max(SIGNIFICANT * noise, rounding) or outside > (SIGNIFICANT * sigma) ** 2
        return cls(problem, values, total, outside, nameless)


def _named(response: Response, noise: float, known: Known | None) -> tuple[Shape | None, str | None]:
    """Return the closed form of a response and its family; None and None if there is none."""
    case = _Case.of(response, noise)
    if case.is_nameless:
        return None, None
    sigma = case.problem.sigma
    fits = [fit for fit in _all_fits(case.problem, case.values, known) if fit.is_acceptable(sigma)]
    if not fits:
        return None, None
    best = _simplest(fits, sigma, response.intervals + 3)
    return _shape(best, case, response.radius), best.family


def _shape(fit: ShapeFit, case: _Case, radius: float) -> Shape:
    """Return a fit as a shape with its formula."""
    name, parameters = _parameters(fit, radius)
    formula = format_formula(name, parameters, radius)
    return Shape(name, parameters, formula, 1.0 - (fit.seen**2 + case.outside) / case.total)


def _simplest(fits: list[ShapeFit], sigma: float, numbers: int) -> ShapeFit:
    """Return the fit of fewest parameters, then by the order of `FAMILIES`, among those that σ cannot distinguish."""
    scores = [fit.score(sigma, numbers) for fit in fits]
    rivals = [fit for fit, score in zip(fits, scores, strict=True) if score <= min(scores) + log(numbers)]
    order = ["polynomial", *(family.name for family in FAMILIES)]
    return min(rivals, key=lambda fit: (fit.parameters, order.index(fit.family)))


def _all_fits(problem: ShapeProblem, values: Floats, known: Known | None) -> list[ShapeFit]:
    """Fit all families of promising groups, the best group first, except those that cannot beat a fit already found."""
    fits = fit_polynomials(problem)
    if known is not None and _is_open(problem, known[0], fits):
        fits.append(fit_from(problem, known[0], [known[1]]))
    groups = {family.group for family in FAMILIES if _is_open(problem, family, fits)}
    starts = {group: grid_of(group, len(values)).best(values) for group in sorted(groups)}
    for group in sorted(starts, key=lambda g: starts[g][0]):
        left, places = starts[group]
        for family in FAMILIES:
            if family.group == group and left < GRID_MISFIT**2 and _is_open(problem, family, fits):
                fits.append(fit_family(problem, family, places))
    return fits


def _is_open(problem: ShapeProblem, family: Family, fits: list[ShapeFit]) -> bool:
    """Return whether a family may still beat the fits: it has fewer parameters than those that explain the response."""
    few = family.parameters < len(problem.target)  # else it would explain anything
    return few and not any(
        fit.seen <= _EXPLAINED * problem.sigma and fit.parameters <= family.parameters for fit in fits
    )


def _leading(points: Points, response: Response) -> tuple[Floats, float]:
    """Return the projected response (M,), the leading combination of several outputs, and the mean square of all."""
    values = response(response.radius * points.u)
    if values.ndim == 1:
        row = points.project(values)
        return row, float(row @ row)
    rows = points.project(values.T)
    _, vectors = np.linalg.eigh(rows @ rows.T)
    leading = vectors[:, -1] * leading_sign(vectors[:, -1])  # as `Feature.output`
    return np.asarray(leading @ rows), float(np.sum(rows * rows))


def _kinks_inside(response: Response) -> Floats:
    """Return the response's kinks inside (−R, R), in units of R, strongest first."""
    t = response.kinks / response.radius
    size = np.linalg.norm(np.atleast_2d(response.kink_weights.T), axis=0)
    t = t[np.argsort(-size, kind="stable")]
    return t[np.abs(t) < 1.0]


def _problem(points: Points, kinks: Floats, values: Floats, cells: int, sigma: float) -> ShapeProblem:
    """Return the problem of fitting `values` on that many cells; kinks add their own atoms to the space."""
    space = spline_space(cells, len(points.u))
    if len(kinks):
        atoms = points.project(np.abs(points.u - kinks[:, None]))
        space = np.concatenate([space, orthonormal_columns(atoms - (atoms @ space) @ space.T)], axis=1)
    return ShapeProblem(points, space, values @ space, cells, kinks, sigma)


# -- formulas -----------------------------------------------------------------------------------------------


def _parameters(fit: ShapeFit, radius: float) -> tuple[str, dict[str, float]]:
    """Return the name of a fitted form and its parameters, in units of z."""
    if fit.powers is not None:
        return "polynomial", {f"c{j}": float(p) / radius**j for j, p in enumerate(fit.powers, start=2)}
    c, k, t = fit.amplitude, fit.place.sign * fit.place.kappa / radius, fit.place.t * radius
    name, b = fit.family, -k * t
    if name == "relu":
        return name, {"at": t, "jump": c / radius}
    if name == "bump":
        return name, {"amplitude": c, "at": t, "width": 1.0 / k}
    if name == "exponential":
        return name, {"amplitude": c * exp(b), "rate": k}
    if name == "tanh" and fit.place.kappa > STEEP:
        return "step", {"height": 2.0 * c, "at": t, "steepness": 2.0 * k}
    if name in RISE and fit.blurred:
        return "step", {"height": RISE[name] * c, "at": t}
    if name in ("sine", "triangle"):
        phase = (b + pi * (c < 0) + pi) % (2.0 * pi) - pi
        return name, {"amplitude": abs(c), "frequency": k, "phase": phase}
    return name, {"amplitude": c, "steepness": k, "bias": b}


def format_formula(name: str, p: Mapping[str, float], radius: float) -> str:
    """Return the form with its parameters p as a formula, without shifts that are small compared with `radius`."""
    at = _shifted(p["at"], radius) if "at" in p else ""
    match name:
        case "polynomial":
            return _polynomial(p, radius)
        case "relu":
            return f"{_factor(p['jump'])}relu({at})"
        case "bump":
            return f"{_factor(p['amplitude'])}exp(−({at})²/(2·{_number(p['width'])}²))"
        case "exponential":
            return f"{_factor(p['amplitude'])}exp({_linear(p['rate'], 0.0)})"
        case "step" if "steepness" in p:
            k = p["steepness"]
            return f"{_factor(p['height'])}sigmoid({f'{_number(k)}({at})' if at != 'z' else _linear(k, 0.0)})"
        case "step":
            return f"{_factor(p['height'])}step({at})"
        case "sine" | "triangle":
            function = "sin" if name == "sine" else name
            return f"{_factor(p['amplitude'])}{function}({_linear(p['frequency'], p['phase'])})"
        case _:
            inside = _linear(p["steepness"], p["bias"]) + (", −1, 1" if name == "clip" else "")
            return f"{_factor(p['amplitude'])}{name}({inside})"


def _polynomial(p: Mapping[str, float], radius: float) -> str:
    """Return the polynomial's terms that are visible next to the largest at |z| = radius."""
    sizes = {int(name[1:]): abs(c) * radius ** int(name[1:]) for name, c in p.items()}
    visible = [j for j, size in sizes.items() if size > _INVISIBLE * max(sizes.values())]
    terms = [f"{_factor(p[f'c{j}']).rstrip('·')}z{'⁰¹²³⁴'[j]}" for j in visible]
    return " + ".join(terms).replace("+ −", "− ")


def format_gated(name: str, p: Mapping[str, float], radius: float) -> str:
    """Return c·φ(kz + b)·(αz + β·u·x + γ), z = v·x, without terms of the bracket too small for the digits shown."""
    terms = {"z": p["along"], "·u·x": p["across"], "": p["constant"]}
    sizes = {name: abs(c) * (radius if name else 1.0) for name, c in terms.items()}
    visible = [n for n, size in sizes.items() if size > _INVISIBLE * max(sizes.values())]
    carried = " + ".join(f"{_number(terms[n])}{n}" for n in visible).replace("+ −", "− ")
    return f"{_factor(p['scale'])}{name}({_linear(p['steepness'], p['bias'])})·({carried})"


def _number(x: float) -> str:
    """Return a number with three digits."""
    return f"{x:.3g}".replace("-", "−")


def _factor(c: float) -> str:
    """Return a factor and its multiplication sign, or nothing for 1."""
    text = _number(c)
    return {"1": "", "−1": "−"}.get(text, text + "·")


def _shifted(t: float, radius: float) -> str:
    """Return "z − t" with its number."""
    if abs(t) < _INVISIBLE * radius:
        return "z"
    return f"z − {_number(t)}" if t > 0 else f"z + {_number(-t)}"


def _linear(k: float, b: float) -> str:
    """Return "kz + b" with its numbers."""
    slope = {"1": "z", "−1": "−z"}.get(_number(k), f"{_number(k)}z")
    if abs(b) < _INVISIBLE:
        return slope
    return f"{slope} + {_number(b)}" if b > 0 else f"{slope} − {_number(-b)}"
