"""The second terms of gated features in canonical form.

The sign of v follows the plain part (`canonical`). The carrier is a unit vector across v whose largest coordinate is
positive, and the gain vanishes at 0: a constant in it belongs to the slope of f.
"""

from __future__ import annotations

import numpy as np

from ..feature import ClosedForm, Gate, GateForm, Shape
from ..geometry import Floats, leading_sign
from ..response import Response
from ..shapes.naming import format_gated
from .activations import INDEX
from .errorbars import ErrorBars
from .gated_form import GATES, GatedForms, GatedModel
from .model import Model


def gate_of(
    model: Model,
    bars: ErrorBars,
    i: int,
    basis: Floats,
    *,
    gates: GatedForms | None,
    flipped: bool,
    scalar: bool,
) -> Gate | None:
    """Return the second term of feature i in the full space, of which the rows of `basis` span the model's; or None.

    With `flipped` the feature's direction is the opposite of the model's.
    """
    if not isinstance(model, GatedModel) or not model.gated[i]:
        return None
    gain, carrier = model.gain.response(i, scalar), model.carriers[i] @ basis
    band = bars.gain_band[i] if bars.gain_band else np.full((2, model.outputs), np.inf)
    if flipped:
        gain, band = gain.flipped(), band[::-1]
    sign = -1.0 if carrier[np.argmax(np.abs(carrier))] < 0 else 1.0
    gain = Response(gain.radius, sign * gain.coefficients, gain.kinks, sign * gain.kink_weights)
    form, output = None, np.zeros(0)
    if gates is not None:
        k, _, alpha, beta = gates.split(i)
        way = -1.0 if flipped else 1.0
        output = gates.outputs[i, 0] if scalar else gates.outputs[i]
        form = GateForm(
            family=GATES[gates.family[i]].name,
            steepness=way * k,
            bias=float(gates.b[i]),
            along=way * alpha,
            across=sign * beta,
            constant=float(gates.c[i]),
        )
    return Gate(
        carrier=sign * carrier / np.linalg.norm(carrier),
        gain=gain,
        carrier_error=float(bars.carrier[i]) if bars.carrier is not None else float("inf"),
        band=band[:, 0] if scalar else band,
        form=form,
        output=output,
    )


def strength_of_gated(response: Response, gate: Gate) -> float:
    """Return the root mean square of s(z) + t(z)·y with z and y uniform in [−R, R]."""
    return float(np.hypot(response.rms(), gate.gain.rms() * response.radius / np.sqrt(3.0)))


def gate_shape(gate: Gate) -> Shape | None:
    """Return the closed form of a gated feature in words; None if it has none.

    Of several outputs it is the one along the feature's output vector, whose largest coordinate is positive. The
    carrier comes with a positive factor, so that the sign of the first one is that of the gain's growth with φ.
    """
    f = gate.form
    if f is None:
        return None
    o = np.atleast_1d(gate.output)
    scale = float(o[0]) if gate.output.ndim == 0 else leading_sign(o) * float(np.linalg.norm(o))
    way = -1.0 if f.across < 0 else 1.0
    numbers = {"scale": way * scale, "steepness": f.steepness, "bias": f.bias, "along": way * f.along}
    numbers |= {"across": way * f.across, "constant": way * f.constant}
    return Shape(f"{f.family} gate", numbers, format_gated(f.family, numbers, gate.gain.radius), 1.0)


def plain_form(gates: GatedForms, i: int, flipped: bool, affine: tuple[Floats, Floats]) -> ClosedForm | None:
    """Return the closed form of a plain unit among gated ones, less the affine part `affine` along its direction."""
    name = GATES[gates.family[i]].name
    if name not in INDEX:
        return None
    constant, line = affine
    sign, o = -1.0 if flipped else 1.0, gates.outputs[i] * gates.c[i]
    o = o[0] if np.ndim(constant) == 0 else o
    k, b = float(np.linalg.norm(gates.g[i])), float(gates.b[i])
    if name == "relu":  # among the activations it is |y|/2
        constant, line = np.asarray(constant) - o * b / 2.0, np.asarray(line) - o * k / 2.0
    return ClosedForm(name, sign * k, b, output=o, constant=constant, line=sign * np.asarray(line))
