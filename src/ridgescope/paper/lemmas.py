"""Both sides of every lemma and claim that has a formula or a bound, evaluated by quadrature.

Each function returns `Sides(left, right)`: an inequality reads left ≤ right (for lower bounds the bound is `left`), an
identity left = right. A planted sum of features is given by its responses σ_j (functions of arrays) and unit directions
v_j (n, d). Its transform follows from Claim fourier-formula,

    f̂⁽ˡ⁾(y) = Σ_j σ̂_j⁽ˡ⁾(v_j·y) · ℓ^{d−1} exp(−ℓ²|y − (v_j·y)v_j|²/2),

so masses are integrals over a grid of y. Masses and values are in the paper's own units unless said otherwise. Numbers
of quadrature nodes suffice for responses that vary on a scale of one; beyond `reach` an integrand has vanished.

Letters: ℓ width of the window, L Lipschitz constant, R radius of the ball, ε nondegeneracy, γ least sine between two
directions, v and A centre and metric of a mass, y point of Fourier space, t frequency along a direction, a and B ends
of the band of Corollary nonzero-weight-region, θ as in Definition 2d-separated, α and η length and smoothing of a
difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import finufft
import numpy as np
from scipy.interpolate import CubicSpline

from ..errors import InvalidInput
from ..geometry import Floats, random_basis
from . import arguments
from .mass import ComplexArray
from .response import STEP, FourierResponse

Scalar = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Sides:
    """The two sides of left ≤ right, or of left = right for an identity."""

    left: float
    right: float

    @property
    def holds(self) -> bool:
        """True if left ≤ right up to the rounding of the quadratures."""
        return self.left <= self.right * (1 + 1e-9) + 1e-12


def windowed_transform(sigma: Scalar, ell: float, y: Floats, points: int = 1 << 14) -> ComplexArray:
    """Return the (k,) values σ̂⁽ˡ⁾(y) = (2π)^−½ ∫ e^{−iyz} σ(z) e^{−z²/2ℓ²} dz at y (k,), by the trapezoidal rule on
    |z| ≤ 9ℓ, where the window has fallen below 1e-17."""
    z = np.linspace(-9 * ell, 9 * ell, points + 1)
    weights = sigma(z) * np.exp(-(z**2) / (2 * ell**2)) * (z[1] - z[0]) / math.sqrt(2 * math.pi)
    out = finufft.nufft1d3(z, weights.astype(np.complex128), y.astype(np.float64), eps=1e-12, isign=-1, nthreads=1)
    return np.asarray(out)


def truncated_inversion(sigma: Scalar, ell: float, B: float, x: Floats, panels: int = 200) -> Floats:
    """Return σ̃_B(x) of Claim truncated-inversion at x (k,): the inversion of σ̂⁽ˡ⁾ on [−B, B] only, by Gauss-Legendre
    quadrature with 20 nodes on each of the panels."""
    node, weight = np.polynomial.legendre.leggauss(20)
    centre = B * ((2 * np.arange(panels) + 1) / panels - 1)
    y = (centre[:, None] + B / panels * node).ravel()
    w = np.tile(B / panels * weight, panels)
    transform = windowed_transform(sigma, ell, y)
    waves = np.exp(1j * np.outer(x, y)) @ (w * transform)
    return np.asarray(np.exp(x**2 / (2 * ell**2)) * waves.real / math.sqrt(2 * math.pi))


def ridge_transform(sigmas: Sequence[Scalar], directions: Floats, ell: float, y: Floats) -> ComplexArray:
    """Return the (k,) values f̂⁽ˡ⁾(y) of a sum of features at y (k, d), by Claim fourier-formula."""
    d = directions.shape[1]
    reach = float(np.linalg.norm(y, axis=1).max()) + 1e-9
    nodes = np.linspace(-reach, reach, 2 * math.ceil(8 * ell * reach) + 65)
    total = np.zeros(len(y), dtype=np.complex128)
    for sigma, v in zip(sigmas, directions, strict=True):
        t = y @ v
        curve = CubicSpline(nodes, windowed_transform(sigma, ell, nodes))
        off = np.maximum((y**2).sum(axis=1) - t**2, 0.0)
        total += curve(t) * ell ** (d - 1) * np.exp(-(ell**2) * off / 2)
    return total


def tensor_grid(axes: Sequence[Floats]) -> Floats:
    """Return all points (k, d) whose coordinates come from the d axes."""
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))


def transform_by_grid(f: Scalar, dim: int, ell: float, y: Floats, points: int = 161) -> ComplexArray:
    """Return the (k,) values f̂⁽ˡ⁾(y) at y (k, d) from the definition, on a tensor grid of x (small d only)."""
    axis = np.linspace(-6 * ell, 6 * ell, points)
    X = tensor_grid([axis] * dim)
    w = f(X) * np.exp(-(X**2).sum(axis=1) / (2 * ell**2)) * (axis[1] - axis[0]) ** dim
    return np.asarray(np.exp(-1j * y @ X.T) @ w / (2 * math.pi) ** (dim / 2))


def mass_by_grid(
    sigmas: Sequence[Scalar],
    directions: Floats,
    ell: float,
    v: Floats,
    A: Floats,
    *,
    reach: float,
) -> float:
    """Return I*(v, A) from Definition fourier-weight, on a grid of |y_k| ≤ reach with four points per tube width
    1/ℓ."""
    d = directions.shape[1]
    axis = np.linspace(-reach, reach, 2 * math.ceil(4 * ell * reach) + 1)
    Y = tensor_grid([axis] * d)
    off = Y - v
    weight = np.exp(-np.einsum("kd,de,ke->k", off, A, off))
    transform = ridge_transform(sigmas, directions, ell, Y)
    return float((np.abs(transform) ** 2 * weight).sum() * (axis[1] - axis[0]) ** d)


def mass_of_waves(c: ComplexArray, omega: Floats, ell: float, v: Floats, A: Floats) -> float:
    """Return I*(v, A)/(πℓ²)^{d/2} of f(x) = Re Σ_k c_k exp(iω_k·x) in closed form: every term is a Gaussian
    integral."""
    d = omega.shape[1]
    both: ComplexArray = np.asarray(np.concatenate([c, np.conj(c)]) / 2, dtype=np.complex128)
    omega = np.concatenate([omega, -omega])
    M = ell**2 * np.eye(d) + A
    total = 0.0
    for ck, p in zip(both, omega, strict=True):
        for cl, q in zip(both, omega, strict=True):
            b = ell**2 * (p + q) / 2 + A @ v
            exponent = b @ np.linalg.solve(M, b) - ell**2 * (p @ p + q @ q) / 2 - v @ A @ v
            total += float((ck * np.conj(cl)).real * math.exp(exponent))
    return float(total * ell**d / math.sqrt(float(np.linalg.det(M))))


def gaussian_reweight(g: Scalar, v: float, a: float, *, reach: float) -> Sides:
    """Claim gaussian-reweight in one dimension: the Fourier side and the two-point side, for g that vanishes beyond
    reach."""
    x = np.linspace(-reach, reach, 2001)
    h = x[1] - x[0]
    values = g(x)
    y = np.linspace(-40.0, 40.0, 4001)
    transform = np.exp(-1j * np.outer(y, x)) @ values * h / math.sqrt(2 * math.pi)
    left = float((np.abs(transform) ** 2 * np.exp(-a * (y - v) ** 2)).sum() * (y[1] - y[0]))
    delta = np.arange(-2000, 2001) * h
    correlation = np.correlate(values, values, mode="full") * h
    density = np.exp(-(delta**2) / (4 * a)) / math.sqrt(4 * math.pi * a)
    return Sides(left, float((np.cos(v * delta) * correlation * density).sum() * h))


def fourier_linfty(sigma: Scalar, ell: float, y: Floats) -> Sides:
    """Fact fourier-linfty: the largest |σ̂⁽ˡ⁾| at y (k,) against ℓ, for |σ| ≤ 1."""
    return Sides(float(np.abs(windowed_transform(sigma, ell, y)).max()), ell)


def lipschitz_fourier(sigma: Scalar, ell: float, y: Floats) -> Sides:
    """Claim lipschitz-fourier, σ̂⁽ˡ⁾ is ℓ²-Lipschitz: the largest slope between neighbours of y (k,) against ℓ²."""
    values = windowed_transform(sigma, ell, y)
    return Sides(float((np.abs(np.diff(values)) / np.diff(y)).max()), ell**2)


def lipschitz_fourier_many(sigmas: Sequence[Scalar], directions: Floats, ell: float, y: Floats) -> Sides:
    """Claim fourier-lipchitz-2 for n features bounded by one: the largest slope along a path y (k, d) against
    n·ℓ^{d+1}."""
    values = ridge_transform(sigmas, directions, ell, y)
    gaps = np.linalg.norm(np.diff(y, axis=0), axis=1)
    n, d = directions.shape
    return Sides(float((np.abs(np.diff(values)) / gaps).max()), n * ell ** (d + 1))


def nondegenerate(sigma: Scalar, R: float, eps: float, points: int = 4001) -> bool:
    """Return whether σ is (R, ε)-nondegenerate, Definition non-degenerate-function: σ(x₁) − σ(x₂) ≥ ε for some x₁, x₂
    in [−R, R], looked for on a grid."""
    values = sigma(np.linspace(-R, R, points))
    return bool(values.max() - values.min() >= eps)


def truncation_error(sigma: Scalar, L: float, ell: float, B: float, R: float) -> Sides:
    """Claim truncated-inversion: the largest |σ − σ̃_B| over |x| ≤ R against 2L√(2ℓ)/√B."""
    x = np.linspace(-R, R, 201)
    left = float(np.abs(sigma(x) - truncated_inversion(sigma, ell, B, x)).max())
    return Sides(left, 2 * L * math.sqrt(2 * ell) / math.sqrt(B))


def nondegen_fourier(sigma: Scalar, R: float, eps: float, ell: float) -> Sides:
    """Lemma nondegen-fourier: ε²/8R against ∫ |σ̂⁽ˡ⁾|² y² e^{−y²/ℓ²} dy.

    By Parseval the integral is ∫ |h′|² with h = σ⁽ˡ⁾ ∗ N(0, ℓ^−2), which needs no high frequencies.
    """
    z = np.linspace(-6 * ell, 6 * ell, 1 << 17)
    step = z[1] - z[0]
    windowed = sigma(z) * np.exp(-(z**2) / (2 * ell**2))
    y = 2 * math.pi * np.fft.rfftfreq(len(z), step)
    slope = np.fft.irfft(1j * y * np.exp(-(y**2) / (2 * ell**2)) * np.fft.rfft(windowed), len(z))
    return Sides(eps**2 / (8 * R), float((slope**2).sum() * step))


def band(R: float, eps: float, ell: float) -> tuple[float, float]:
    """Return a and B of Corollary nonzero-weight-region."""
    return eps / 8 * math.sqrt(1 / (R * ell)), 4 * ell * math.log(ell * R / eps)


def nonzero_weight_region(sigma: Scalar, R: float, eps: float, ell: float) -> Sides:
    """Corollary nonzero-weight-region: ε²/(8Rℓ²) against the power of σ⁽ˡ⁾ in a ≤ |y| ≤ B."""
    a, B = band(R, eps, ell)
    z = np.linspace(-8 * ell, 8 * ell, 1 << 17)
    step = z[1] - z[0]
    power = np.abs(np.fft.fft(sigma(z) * np.exp(-(z**2) / (2 * ell**2)), 1 << 19) * step) ** 2 / (2 * math.pi)
    y = 2 * math.pi * np.fft.fftfreq(1 << 19, step)
    inside = (np.abs(y) >= a) & (np.abs(y) <= B)
    return Sides(eps**2 / (8 * R * ell**2), float(power[inside].sum() * 2 * math.pi / ((1 << 19) * step)))


def _sine2(directions: Floats, i: int) -> float:
    """Return the least squared sine between v_i and the other directions (n, d), 1 if there are none."""
    others = np.delete(directions, i, axis=0)
    return 1 - float(np.abs(others @ directions[i]).max()) ** 2 if len(others) else 1.0


def fourier_point_closeness(
    sigmas: Sequence[Scalar], directions: Floats, i: int, u: Floats, ell: float, t: Floats
) -> Sides:
    """Claim fourier-point-closeness, before its parameters are set: max_t |f̂⁽ˡ⁾(tu) − ℓ^{d−1}σ̂_i⁽ˡ⁾(t)| against

        n ℓ^{d+1} |t| ‖u − v_i‖ + n ℓ^d exp(−ℓ²t²γ²/2),

    the two terms that the proof bounds by Δ^0.8 ℓ^d each.
    """
    n, d = directions.shape
    gamma2 = _sine2(directions, i)
    exact = ell ** (d - 1) * windowed_transform(sigmas[i], ell, t)
    gap = np.abs(ridge_transform(sigmas, directions, ell, t[:, None] * u) - exact)
    bound = n * ell ** (d + 1) * np.abs(t) * np.linalg.norm(u - directions[i]) + n * ell**d * np.exp(
        -(ell**2) * t**2 * gamma2 / 2
    )
    worst = int(np.argmax(gap - bound))
    return Sides(float(gap[worst]), float(bound[worst]))


def recover_function(
    sigmas: Sequence[Scalar],
    directions: Floats,
    i: int,
    u: Floats,
    ell: float,
    *,
    R: float,
    t_high: float,
    points: int = 1 << 19,
) -> Sides:
    """Lemma recover-function with an exact value oracle, at t_low = ℓ^−0.9 and a given t_high: the largest
    |σ̃(u·x) − σ_i(v_i·x)| over |x| ≤ R against 5/ℓ^0.7.

    `points` is the number of nodes of the quadrature for every transform. Only the x in the plane of u and v_i matter.
    """
    step = STEP / ell
    t = step * np.arange(math.ceil(ell**-0.9 / step), math.floor(t_high / step) + 1)
    transform = np.zeros(len(t), dtype=np.complex128)
    for sigma, v in zip(sigmas, directions, strict=True):  # Claim fourier-formula along tu
        c = float(u @ v)
        transform += windowed_transform(sigma, ell, c * t, points) * np.exp(-((ell * t) ** 2) * (1 - c**2) / 2)
    recovered = FourierResponse(ell, step, t, transform, np.zeros(len(t)), 0)
    z = np.linspace(-R, R, 41)
    c = float(u @ directions[i])
    aside = np.outer(np.sqrt(R**2 - z**2), [-1.0, 0.0, 1.0]) * math.sqrt(max(1 - c**2, 0.0))
    left = np.abs(recovered(z)[:, None] - sigmas[i](c * z[:, None] + aside)).max()
    return Sides(float(left), 5 / ell**0.7)


def separating(directions: Floats, basis: Floats) -> float:
    """Return the largest θ for which b₁, b₂ are θ-separating: Definition 2d-separated, with the absolute value it
    needs.

    Parameters
    ----------
    directions
        (n, d) unit rows v_i.
    basis
        (d, d) orthonormal rows b_j, of which the first two count.

    Returns
    -------
    float
        θ, which is 0 if two directions have the same projection.

    Examples
    --------
    >>> rs.paper.separating(np.eye(3)[:2], np.eye(3))  # each v_i is orthogonal to one of b₁, b₂
    0.0
    """
    directions, basis = arguments.unit_rows("directions", directions), arguments.unit_rows("basis", basis)
    d = basis.shape[1]
    if len(basis) < 2 or directions.shape[1] != d:
        raise InvalidInput(
            f"basis must have two rows or more, of as many numbers as directions; got {basis.shape}, {directions.shape}"
        )
    p = directions @ basis[:2].T
    theta = float(np.abs(p).min()) * math.sqrt(d)
    i, j = np.triu_indices(len(p), k=1)
    if len(i):
        cross = np.abs(p[i, 0] * p[j, 1] - p[j, 0] * p[i, 1])
        theta = min(theta, math.sqrt(d * float(cross.min())))
    return theta


def anticoncentration(directions: Floats, gamma: float, *, trials: int, rng: np.random.Generator) -> Sides:
    """Claim anticoncentration: the share of random bases that are not γ/(10n)³-separating against 1/(10n)."""
    n = len(directions)
    return Sides(not_separating(directions, separation_of_bases(n, gamma), trials=trials, rng=rng), 1 / (10 * n))


def separation_of_bases(n: int, gamma: float) -> float:
    """Return the θ of Claim anticoncentration, γ/(10n)³."""
    return gamma / (10 * n) ** 3


def not_separating(directions: Floats, theta: float, *, trials: int, rng: np.random.Generator) -> float:
    """Return the share of random bases whose b₁, b₂ are not θ-separating."""
    d = directions.shape[1]
    return sum(separating(directions, random_basis(d, d, rng)) < theta for _ in range(trials)) / trials


def union_bound(n: int, theta: float) -> float:
    """Return the failure probability that the proof of Claim anticoncentration adds up: 10θ for each of the 2n first
    conditions and each of the n(n − 1)/2 second ones, θ = 1/(10n)³ being γ-free there."""
    return 10 * theta * (2 * n + n * (n - 1) / 2)
