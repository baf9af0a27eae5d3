"""Convert a fitted model to canonical features, a unique form of the same function.

Data cannot attribute an affine part to one feature, so s_i(0) = 0 and s_i has no least-squares slope over [−R, R];
both go to the shared bias and slope. The sign of v_i makes its largest coordinate positive; features are
ordered by strength.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..deadline import check_time
from ..feature import ClosedForm, Feature
from ..geometry import Floats
from ..shapes.families import FAMILIES, Placement
from ..shapes.naming import Known, name_shapes
from .activations import ACTIVATIONS, ONE_SIDED, SPLINE
from .closed_form import ClosedForms
from .errorbars import ErrorBars
from .gated_canonical import gate_of, gate_shape, plain_form, strength_of_gated
from .gated_form import GatedForms
from .model import Model


def canonical_features(
    model: Model,
    bars: ErrorBars,
    basis: Floats,
    *,
    scalar: bool,
    named: bool = True,
    forms: ClosedForms | None = None,
    gates: GatedForms | None = None,
) -> tuple[tuple[Feature, ...], Floats, Floats]:
    """Return (features, bias, slope) in the full space; the rows of `basis` (r, d) span the space of the model.

    With `scalar` the only output loses its axis; shapes are looked for if `named`, first of all where the closed forms
    that the model stands for say; `gates` are those of gated features. Raises OutOfTime where the time limit of the run
    passes meanwhile.
    """
    bias = model.coefficients[-1 - model.dim].copy()
    slope = model.coefficients[-model.dim :].copy()
    features, known = list[Feature](), list[Known | None]()
    for i in range(model.count):
        check_time()
        response, c0, c1 = model.response(i, scalar).without_affine()
        bias += np.atleast_1d(c0)
        slope += np.multiply.outer(model.directions[i], np.atleast_1d(c1))
        direction, band = model.directions[i] @ basis, bars.band[i]
        flipped = direction[np.argmax(np.abs(direction))] < 0
        if flipped:
            direction, response, band = -direction, response.flipped(), band[::-1]
        known.append(known_form(forms, i, flipped) if forms is not None else None)
        gate = gate_of(model, bars, i, basis, gates=gates, flipped=flipped, scalar=scalar)
        if gate is None and gates is not None:
            form = plain_form(gates, i, flipped, (c0, c1))
        else:
            form = closed_form(forms, i, flipped, (c0, c1)) if forms is not None else None
        features.append(
            Feature(
                direction=direction / np.linalg.norm(direction),
                response=response,
                angle_error=float(bars.angle[i]),
                strength=response.rms() if gate is None else strength_of_gated(response, gate),
                band=band[:, 0] if scalar else band,
                form=form,
                gate=gate,
                shape=gate_shape(gate) if named and gate is not None else None,
            )
        )
    if named:
        plain = [i for i, f in enumerate(features) if not f.gated]
        noises = [float(np.sqrt(np.mean(features[i].band ** 2))) for i in plain]
        shapes = name_shapes([features[i].response for i in plain], noises, [known[i] for i in plain])
        for i, shape in zip(plain, shapes, strict=True):
            features[i] = replace(features[i], shape=shape)
    features.sort(key=lambda f: -f.strength)
    full = basis.T @ slope
    return tuple(features), (bias[0] if scalar else bias), (full[:, 0] if scalar else full)


def closed_form(forms: ClosedForms, i: int, flipped: bool, affine: tuple[Floats, Floats]) -> ClosedForm | None:
    """Return the form c φ(k·z + b) of feature i less an affine part, z along its direction or, flipped, against it.

    `affine` are constant and slope of that part along its direction, scalars if the function is scalar.
    """
    if forms.family[i] == SPLINE:
        return None
    constant, line = affine
    sign, output = -1.0 if flipped else 1.0, forms.block(i)[0]
    return ClosedForm(
        family=ACTIVATIONS[forms.family[i]].name,
        steepness=sign * float(forms.kappa[i]) / forms.radius,
        bias=float(forms.b[i]),
        output=output[0] if np.ndim(constant) == 0 else output,
        constant=constant,
        line=sign * np.asarray(line),
    )


def known_form(forms: ClosedForms, i: int, flipped: bool) -> Known | None:
    """Return the form φ(κu + b) of feature i as a family and its placement; None for a spline or a nameless family."""
    if not 0 <= forms.family[i] < len(FAMILIES):
        return None
    family, kappa = FAMILIES[forms.family[i]], float(-forms.kappa[i] if flipped else forms.kappa[i])
    # Up to lines, all families but one-sided ones are even or odd: for them the factor c takes the sign of κ.
    sign = 1.0 if kappa > 0 or family.name not in ONE_SIDED else -1.0
    return family, Placement(abs(kappa), -float(forms.b[i]) / kappa, sign)
