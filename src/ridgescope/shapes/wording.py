"""A fitted form as a person would write it."""

from __future__ import annotations

from math import exp, pi

import numpy as np

from ..feature import Shape
from ..geometry import Floats
from .families import RISE
from .fitting import Fit

STEEP = 9.0
"""κ above which a sigmoid is a step: nine tenths of its rise (tanh ±1.5 = ±0.905) take a sixth of [−R, R]."""


def written(fit: Fit, radius: float, modulo: int, r2: float) -> Shape:
    if fit.powers is not None:
        return _written_polynomial(fit.powers, radius, modulo, r2)
    c, k, t = fit.amplitude, fit.place.sign * fit.place.kappa / radius, fit.place.t * radius
    name, b = fit.family, -k * t
    if name == "relu":
        jump = c / radius
        return Shape("relu", {"at": t, "jump": jump}, f"{_factor(jump)}relu({_shifted(t, radius)})", r2)
    if name == "bump":
        width = 1.0 / k
        formula = f"{_factor(c)}exp(−({_shifted(t, radius)})²/(2·{_number(width)}²))"
        return Shape("bump", {"amplitude": c, "at": t, "width": width}, formula, r2)
    if name == "exponential":
        c *= exp(b)
        return Shape("exponential", {"amplitude": c, "rate": k}, f"{_factor(c)}exp({_linear(k, 0.0)})", r2)
    if name == "tanh" and fit.place.kappa > STEEP:
        numbers = {"height": 2.0 * c, "at": t, "steepness": 2.0 * k}
        inside = _shifted(t, radius)
        inside = f"{_number(2.0 * k)}({inside})" if inside != "z" else _linear(2.0 * k, 0.0)
        formula = f"{_factor(2.0 * c)}sigmoid({inside})"
        return Shape("step", numbers, formula, r2)
    if name in ("erf", "clip", "arctan") and fit.blurred:
        formula = f"{_factor(RISE[name] * c)}step({_shifted(t, radius)})"
        return Shape("step", {"height": RISE[name] * c, "at": t}, formula, r2)
    if name in ("sine", "triangle"):
        b = (b + pi * (c < 0) + pi) % (2.0 * pi) - pi
        c = abs(c)
        written = "sin" if name == "sine" else "triangle"
        numbers = {"amplitude": c, "frequency": k, "phase": b}
        return Shape(name, numbers, f"{_factor(c)}{written}({_linear(k, b)})", r2)
    inside = f"{_linear(k, b)}, −1, 1" if name == "clip" else _linear(k, b)
    return Shape(name, {"amplitude": c, "steepness": k, "bias": b}, f"{_factor(c)}{name}({inside})", r2)


def _written_polynomial(powers: Floats, radius: float, modulo: int, r2: float) -> Shape:
    degrees = range(modulo + 1, modulo + 1 + len(powers))
    c = {j: float(p) / radius**j for j, p in zip(degrees, powers, strict=True)}
    visible = [j for j, p in zip(degrees, powers, strict=True) if abs(p) > 5e-4 * np.abs(powers).max()]
    terms = [f"{_factor(c[j]).rstrip('·')}z{'⁰¹²³⁴'[j]}" for j in visible]
    formula = " + ".join(terms).replace("+ −", "− ")
    return Shape("polynomial", {f"c{j}": value for j, value in c.items()}, formula, r2)


def _number(x: float) -> str:
    return f"{x:.3g}".replace("-", "−")


def _factor(c: float) -> str:
    text = _number(c)
    return {"1": "", "−1": "−"}.get(text, text + "·")


def _shifted(t: float, radius: float) -> str:
    """z − t; a shift too small to see in three digits of the radius is none."""
    if abs(t) < 5e-4 * radius:
        return "z"
    return f"z − {_number(t)}" if t > 0 else f"z + {_number(-t)}"


def _linear(k: float, b: float) -> str:
    slope = {"1": "z", "−1": "−z"}.get(_number(k), f"{_number(k)}z")
    if abs(b) < 5e-4:
        return slope
    return f"{slope} + {_number(b)}" if b > 0 else f"{slope} − {_number(-b)}"
