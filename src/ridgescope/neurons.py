"""From features to neurons: one activation for all responses, their lines, and the signs of their weights.

A response is known without its line, which is in the slope of f. With the activation φ known, each response is
c_i φ(k_i z + b_i) plus a line, and these lines go back to the slope. For ReLU, GELU, SiLU and softplus

    φ(y) = y/2 + an even function,      c φ(y) = c φ(−y) + c y,

so that a neuron and its mirror image differ by the line M_i = k_i v_i c_iᵀ (d × p). Let A be the slope that is left
when every φ is replaced by its even part. Then signs σ_i = ±1 leave

    S(σ) = A − ½ Σ σ_i M_i,

and a network without a linear term of its own has S = 0. Where the M_i are independent, which n ≤ d·p in general
position are, least squares gives σ, and the rounded signs leave S. An entry of S that differs from 0 because of errors
or of a linear term of f has the size τ; σ_i/2 then has the standard error τ √(G⁻¹)_ii, G the Gram matrix of the M_i,
and the sign is resolved where four of these are less than ½. Where they are dependent, all signs of the surplus ones
are tried.

A leaky ReLU with slope α below zero has ρ = (1 + α)/(1 − α) in place of 1 before the line, the same for all neurons,
and the absolute value has ρ = 0: ρ is measured.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve, qr

from .bilinear import BilinearNetwork, bilinear_network_of, hessians_of
from .errors import InvalidInput
from .feature import Feature
from .fit.activations import ACTIVATIONS, INDEX, ONE_SIDED
from .fit.gated_form import GATE_INDEX
from .gated_network import GatedNetwork, gated_network_of
from .geometry import Floats
from .network import ACTIVATION_NAMES, Flags, Network, activation_values
from .shapes.naming import fit_as

if TYPE_CHECKING:
    from .result import Extraction

MIRRORED = ("relu", "softplus", "gelu", "gelu_tanh", "silu")
"""Activations that differ from their mirror image by a line."""
HOMOGENEOUS = ("relu", "leaky_relu", "abs")
"""Activations with φ(cy) = cφ(y) for c > 0: the length of a row of W_in is a convention."""
EVEN = ("bump", "square")
"""Activations that are their own mirror image; those that are neither here, nor mirrored, nor one-sided are odd."""
SAME_RESPONSE = {"leaky_relu": "relu", "abs": "relu", "sigmoid": "tanh"}
"""Activations that have the response of another one, up to an affine part."""
SURE = 4.0
"""Standard errors that a sign must be away from being the other one."""
FAR_WORSE = 10.0
"""Where signs are tried one by one: factor of what they leave by which the others must be worse."""
MOST_SURPLUS = 14
"""Dependent neurons whose signs are tried one by one, 2¹⁴ times."""
_LARGEST_TABLE = 5_000_000  # entries of a matrix of all M_i that is made
_DEPENDENT = 1e-9  # of a unit column: what the others leave of it
_STRAIGHT = 0.5  # median |σ| below which the responses have no lines: the absolute value
_POINTS = 8  # per interval, at which a response is compared with its form
_FIRST_LOOK = 32  # features, the strongest, on which a family must be better than another one to be tried on all
_CLEARLY = 0.25  # of the misfit that a more frequent family leaves: a rarer one must be better than that
_TINY = 1e-300  # keeps a quotient of zeros finite
_FAMILY_OF_NAME = {"step": "tanh"}


@dataclass(frozen=True, eq=False)
class Neurons:
    """Responses of one activation: f = bias + slope·u + Σ c_i φ(k_i v_i·u + b_i), u the coordinates of the result."""

    directions: Floats
    """(n, d)."""
    steepness: Floats
    """(n,) k."""
    bias_in: Floats
    """(n,) b."""
    output: Floats
    """(n, p) c."""
    slope: Floats
    """(d, p)."""
    bias: Floats
    """(p,)."""


@dataclass(frozen=True, eq=False)
class Signs:
    """Signs of neurons, and how sure they are."""

    sigma: Floats
    """(n,) ±1."""
    resolved: Flags
    """(n,)."""
    ratio: float = 1.0
    """ρ: 1 for ReLU, GELU and the like, 0 for the absolute value, larger for leaky ReLU."""


def network_of(found: Extraction, activation: str | None = None) -> Network | GatedNetwork | BilinearNetwork:
    """Return the network whose neurons are the features of a result; raise `InvalidInput` if they are of several kinds.

    `activation` names the one to use; by default it is the family that explains all responses to their errors.
    """
    if activation is not None and activation not in (*ACTIVATION_NAMES, *GATE_INDEX):
        raise InvalidInput(f"unknown activation {activation!r}; choose from {', '.join(ACTIVATION_NAMES)}")
    if any(f.gated for f in found.features):
        return gated_network_of(found, activation)
    if not found.features:
        raise InvalidInput("the result has no features, so there is no network; its bias and slope are all there is")
    if activation is None and hessians_of(found.features) is not None:
        return bilinear_network_of(found)
    family, numbers = _common_family(found, activation)
    neurons = _with_lines(found, family, numbers)
    if family not in MIRRORED:
        upright = _upright(family, neurons)
        return _network(found, activation or family, upright, np.ones(len(found.features), bool), 0.0)
    middle = _without_lines(neurons)
    signs = _signs(middle, _slope_error(found), measure_ratio=family == "relu" and activation != "relu")
    leak = (signs.ratio - 1.0) / (signs.ratio + 1.0)
    name = "leaky_relu" if signs.ratio not in (0.0, 1.0) else "abs" if signs.ratio == 0.0 else family
    if activation is not None and activation != name:
        raise InvalidInput(f"the lines of the responses are those of {name}, not of {activation}; leave activation out")
    amount = {"leaky_relu": 1.0 / (1.0 - leak), "abs": 0.5}.get(name, 1.0)
    half = 0.5 * signs.ratio * signs.sigma
    signed = replace(
        middle,
        steepness=signs.sigma * middle.steepness,
        bias_in=signs.sigma * middle.bias_in,
        output=amount * middle.output,
        slope=_less_lines(middle, half),
        bias=middle.bias - (half * middle.bias_in) @ middle.output,
    )
    return _network(found, name, signed, signs.resolved, leak if name == "leaky_relu" else 0.0)


# -- one activation for all ----------------------------------------------------------------------------------


def _common_family(found: Extraction, activation: str | None) -> tuple[str, list[tuple[float, float]]]:
    """Return the family that explains all responses best, and (k, b) of each."""
    own = [_family_of(f) for f in found.features]
    counts = Counter(name for name in own if name is not None)
    candidates = [SAME_RESPONSE.get(activation, activation)] if activation is not None else _alike(counts)
    best, fits_of_best, unexplained = None, list[_Member | None](), dict[str, int]()
    for family in candidates:
        if best is not None and family not in counts and all(f.form is not None for f in found.features):
            break  # the fit itself has compared the families
        fits = [_as_family(f, family) for f in found.features[:_FIRST_LOOK]]
        if best is not None and _misfit(fits) >= _CLEARLY * _misfit(fits_of_best[:_FIRST_LOOK]):
            continue
        fits += [_as_family(f, family) for f in found.features[_FIRST_LOOK:]]
        unexplained[family] = sum(fit is None for fit in fits)
        if _misfit(fits) < (1.0 if best is None else _CLEARLY) * _misfit(fits_of_best):
            best, fits_of_best = family, fits
    if best is not None:
        return best, [(fit.steepness, fit.bias) for fit in fits_of_best if fit is not None]
    listed = Counter(name or "without a closed form" for name in own).most_common()
    kinds = ", ".join(f"{count} {name}" for name, count in listed)
    near = min(unexplained, key=lambda name: unexplained[name], default=None)
    close = f"; {near} leaves {unexplained[near]} of {len(own)} unexplained" if near is not None else ""
    raise InvalidInput(
        f"network() needs one activation for all responses, but those found are {kinds}{close}. Take the features of "
        "one kind with found.only([…]).network(), name another with network(activation=…), or use found.predict and "
        "found.to_torch(), which take responses of any kind"
    )


def _alike(counts: Counter[str]) -> list[str]:
    """Return the families found, from frequent to rare, each followed by those that look like it."""
    ordered = list[str]()
    for name, _ in counts.most_common():
        group = ACTIVATIONS[INDEX[name]].group
        ordered += [name, *(family.name for family in ACTIVATIONS if family.group == group)]
    return list(dict.fromkeys(ordered))


@dataclass(frozen=True)
class _Member:
    """The member c·φ(k·z + b) of a family that explains a response, up to a line."""

    steepness: float
    bias: float
    misfit: float
    """Square of what it leaves of the response, in units of its strength; 0 for the form of the fit itself."""


def _misfit(fits: list[_Member | None]) -> float:
    """Return what members of a family leave of their responses in all; infinite if one is missing, or all are."""
    return sum(inf if fit is None else fit.misfit for fit in fits) if fits else inf


def _family_of(feature: Feature) -> str | None:
    """Return the family of a feature: that of the fit, else that of its shape; None if it has neither."""
    if feature.form is not None:
        return feature.form.family
    name = feature.shape.name if feature.shape is not None else None
    name = _FAMILY_OF_NAME.get(name or "", name)
    return name if name in INDEX else None


def _as_family(feature: Feature, family: str) -> _Member | None:
    """Return the member of a family that explains a response to its errors; None if there is none."""
    if feature.form is not None and feature.form.family == family:
        return _Member(feature.form.steepness, feature.form.bias, 0.0)
    noise = float(np.sqrt(np.mean(feature.band**2))) if feature.band.size else 0.0
    fit = fit_as(feature.response, noise, ACTIVATIONS[INDEX[family]])
    if fit is None:
        return None
    kappa = fit.place.sign * fit.place.kappa
    square = (fit.seen / max(feature.strength, _TINY)) ** 2
    return _Member(kappa / feature.response.radius, -kappa * fit.place.t, square)


def _with_lines(found: Extraction, family: str, numbers: list[tuple[float, float]]) -> Neurons:
    """Return the neurons c φ(kz + b), and the affine part of f without theirs."""
    p = found.outputs or 1
    slope, bias = np.array(found.slope).reshape(found.dim, p), np.array(found.bias).reshape(p)
    output = np.empty((len(numbers), p))
    for i, (feature, (k, b)) in enumerate(zip(found.features, numbers, strict=True)):
        form = feature.form
        if form is not None and form.family == family:
            output[i], constant, line = form.output, -form.constant, -form.line
            if family == "relu":  # |y|/2 = relu(y) − y/2
                constant, line = constant - 0.5 * b * form.output, line - 0.5 * k * form.output
        else:
            z = np.linspace(-found.radius, found.radius, _POINTS * feature.response.intervals + 1)
            design = np.stack([activation_values(family, k * z + b), np.ones(len(z)), z], axis=1)
            fitted = np.linalg.lstsq(design, feature.response(z).reshape(len(z), p), rcond=None)[0]
            output[i], constant, line = fitted
        bias += constant
        slope += np.multiply.outer(feature.direction, np.reshape(line, p))
    pairs = np.array(numbers)
    return Neurons(found.directions, pairs[:, 0], pairs[:, 1], output, slope, bias)


# -- signs ---------------------------------------------------------------------------------------------------


def _without_lines(neurons: Neurons) -> Neurons:
    """Return the same function with φ(y) − y/2 in place of φ(y): the slope is then A."""
    half = np.full(len(neurons.steepness), -0.5)
    bias = neurons.bias + 0.5 * neurons.bias_in @ neurons.output
    return replace(neurons, slope=_less_lines(neurons, half), bias=bias)


def _less_lines(neurons: Neurons, factors: Floats) -> Floats:
    """Return the slope (d, p) less Σ factors_i M_i."""
    return np.asarray(neurons.slope - neurons.directions.T @ ((factors * neurons.steepness)[:, None] * neurons.output))


def _slope_error(found: Extraction) -> float:
    """Return the error of one entry of the slope that the certificate allows for.

    An error E (d × p) of the slope has the mean square |E|² R²/(p(d + 2)) over ball and outputs.
    """
    return found.certificate.rms * sqrt((found.dim + 2) / found.dim) / found.radius


def _signs(middle: Neurons, error: float, measure_ratio: bool) -> Signs:
    """Return the signs with which the neurons' lines leave the least of the slope A of `middle`."""
    w = middle.steepness[:, None] * middle.directions
    gram = (w @ w.T) * (middle.output @ middle.output.T)
    size = np.sqrt(np.maximum(np.diag(gram), np.finfo(np.float64).tiny))
    target = np.einsum("nd,dp,np->n", w, middle.slope, middle.output) / size
    unit_gram = gram / size[:, None] / size
    spectrum = np.linalg.eigvalsh(unit_gram)
    if spectrum[0] <= _DEPENDENT:
        return _signs_of_dependent(middle, error)
    try:
        inverse = cho_solve(cho_factor(unit_gram), np.eye(len(size)))
    except LinAlgError:
        return _signs_of_dependent(middle, error)
    halves = (inverse @ target) / size
    sigma = np.where(halves < 0.0, -1.0, 1.0)
    entries = _entries(middle)
    ratio = _ratio(middle, sigma, halves, error, entries) if measure_ratio else 1.0
    left = _less_lines(middle, 0.5 * ratio * sigma)
    tau = max(float(np.linalg.norm(left)) / sqrt(entries), error)
    wrong = SURE * tau * np.sqrt(np.diag(inverse)) / size
    resolved = np.ones(len(sigma), bool) if ratio == 0.0 else wrong < 0.5 * ratio
    return Signs(np.ones(len(sigma)) if ratio == 0.0 else sigma, np.asarray(resolved), ratio)


def _ratio(middle: Neurons, sigma: Floats, halves: Floats, error: float, entries: int) -> float:
    """Return ρ: 0 for the absolute value, 1 for ReLU where the data show no difference, else as measured."""
    if float(np.median(np.abs(halves))) < 0.5 * _STRAIGHT:
        return 0.0
    lines = -_less_lines(replace(middle, slope=np.zeros_like(middle.slope)), 0.5 * sigma)
    square = float(np.sum(lines * lines))
    ratio = float(np.sum(lines * middle.slope)) / square
    tau = max(float(np.linalg.norm(middle.slope - ratio * lines)) / sqrt(entries), error)
    return 1.0 if not ratio > 1.0 + SURE * tau / sqrt(square) else ratio


def _entries(middle: Neurons) -> int:
    """Return the number of entries that the slope can have: those of the space that the directions span."""
    rank = int(np.linalg.matrix_rank(np.concatenate([middle.directions, middle.slope.T]), tol=_DEPENDENT))
    return max(1, rank) * len(middle.bias)


def _signs_of_dependent(middle: Neurons, error: float) -> Signs:
    """Try all signs of the surplus neurons; those of the others follow by least squares."""
    n, (d, p) = len(middle.steepness), middle.slope.shape
    none = np.zeros(n, bool)
    if n * d * p > _LARGEST_TABLE:
        return Signs(np.ones(n), none)
    w = middle.steepness[:, None] * middle.directions
    columns = 0.5 * np.einsum("nd,np->dpn", w, middle.output).reshape(d * p, n)
    target = middle.slope.reshape(-1)
    size = np.maximum(np.linalg.norm(columns, axis=0), np.finfo(np.float64).tiny)
    _, triangle, order = qr(columns / size, mode="economic", pivoting=True)
    rank = int(np.sum(np.abs(np.diag(triangle)) > sqrt(_DEPENDENT)))
    free = order[rank:]
    if len(free) > MOST_SURPLUS:
        from scipy.optimize import lsq_linear  # slow to import, and seldom needed

        sigma = np.where(lsq_linear(columns, target, (-1.0, 1.0)).x < 0.0, -1.0, 1.0)
        return Signs(sigma, none)
    sigma, left = _all_signs(columns, target, order[:rank], free)
    best = int(np.argmin(left))
    enough = FAR_WORSE * max(float(left[best]), error * sqrt(_entries(middle)))
    other = np.where(sigma != sigma[:, best : best + 1], left, inf).min(axis=1)
    return Signs(sigma[:, best], np.asarray(other > enough))


def _all_signs(
    columns: Floats, target: Floats, bound: NDArray[np.intp], free: NDArray[np.intp]
) -> tuple[Floats, Floats]:
    """Return signs (n, N) for all N signs of the `free` columns, and what each leaves of the target (N,).

    Both signs of each `bound` column are among them, too: those of least squares, and those with one of them turned.
    """
    count = 2 ** len(free)
    tried = 1.0 - 2.0 * ((np.arange(count) >> np.arange(len(free))[:, None]) & 1)
    rest = target[:, None] - columns[:, free] @ tried
    solved = np.linalg.lstsq(columns[:, bound], rest, rcond=None)[0]
    sigma = np.empty((columns.shape[1], count))
    sigma[free], sigma[bound] = tried, np.where(solved < 0.0, -1.0, 1.0)
    left = np.linalg.norm(target[:, None] - columns @ sigma, axis=0)
    best = int(np.argmin(left))
    turned = np.repeat(sigma[:, best : best + 1], len(bound), axis=1)
    turned[bound, np.arange(len(bound))] *= -1.0
    left_turned = np.linalg.norm(target[:, None] - columns @ turned, axis=0)
    return np.concatenate([sigma, turned], axis=1), np.concatenate([left, left_turned])


def _upright(family: str, neurons: Neurons) -> Neurons:
    """Return the neurons with k > 0, where the activation is even or odd and the sign hence a convention."""
    if family in ONE_SIDED:
        return neurons
    sign = np.where(neurons.steepness < 0.0, -1.0, 1.0)
    output = neurons.output if family in EVEN else sign[:, None] * neurons.output
    return replace(neurons, steepness=sign * neurons.steepness, bias_in=sign * neurons.bias_in, output=output)


# -- weights -------------------------------------------------------------------------------------------------


def _network(found: Extraction, name: str, neurons: Neurons, resolved: Flags, leak: float) -> Network:
    """Return the weights in f's own coordinates x = center + scale·u."""
    W_in = neurons.steepness[:, None] * neurons.directions / found.scale
    b_in, output = neurons.bias_in - W_in @ found.center, neurons.output
    slope = (neurons.slope / found.scale[:, None]).T
    b_out = neurons.bias - slope @ found.center
    length = np.ones(len(b_in))
    if name in HOMOGENEOUS:
        length = np.linalg.norm(W_in, axis=1)
    elif name == "sigmoid":  # tanh(y) = 2·sigmoid(2y) − 1
        length = np.full(len(b_in), 0.5)
        b_out = b_out - output.sum(axis=0)
        output = 4.0 * output
    return Network(
        name,
        W_in / length[:, None],
        b_in / length,
        (output * length[:, None]).T,
        b_out,
        slope,
        resolved,
        leak,
        found.outputs is None,
    )
