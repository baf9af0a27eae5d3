"""Things made by hand for several tests: extractions, and a function that other processes can import."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import ridgescope as rs
from ridgescope.feature import Checks, Gate, Plane
from ridgescope.geometry import unit
from ridgescope.response import interpolate


def sometimes_nan(X):
    return np.where(X[:, 0] > 0, np.nan, X[:, 0])


CERTIFICATE = rs.Certificate(
    verdict="met",
    tolerance=0.01,
    std=2.0,
    noise=0.0,
    rms=0.001,
    rms_low=0.0009,
    rms_high=0.0011,
    sup_seen=0.005,
    bound=0.004,
    coverage=0.999,
    confidence=0.99,
    samples=5000,
)


def extraction(outputs=None, features=2, dim=3, **changes):
    """A small result: sines of falling strength along the coordinate axes."""
    p = () if outputs is None else (outputs,)
    made = []
    for i in range(features):
        row = np.eye(dim)[i % dim] + 0.1 * (i // dim)
        amplitude = np.ones(p) / (i + 1)
        response = interpolate(lambda z, a=amplitude: np.multiply.outer(np.sin(z), a), 3.0, 12)
        shape = rs.Shape("sine", {"frequency": 1.0, "phase": 0.0}, "1.00·sin(1.00z)", 1.0) if i % 2 == 0 else None
        made.append(rs.Feature(unit(row), response, 1e-5 * (i + 1), response.rms(), shape, np.full((5, *p), 0.1)))
    parts = {
        "features": tuple(made),
        "bias": np.full(p, 0.5),
        "slope": np.full((dim, *p), 0.25),
        "radius": 3.0,
        "center": np.zeros(dim),
        "scale": np.ones(dim),
        "certificate": CERTIFICATE,
        "queries": 12345,
        "queries_by_stage": {"survey": 345, "fit": 12000},
        "history": (rs.Round(1, "slices", 12000, 9, features, 0.001, "two planes"),),
        "stop": rs.StopReason.CERTIFIED,
        "stopped": "The tolerance is met.",
        "seed": "0",
    }
    return rs.Extraction(**{**parts, **changes})


_floats = st.floats(width=64)
_numbers = st.floats(-1e100, 1e100)
_verdicts = st.sampled_from(["met", "not met", "undecided"])
_names = st.text(max_size=8)


@st.composite
def extractions(draw):
    """Any extraction at all: scalar or vector, no features or several, infinities and NaN where allowed."""
    dim = draw(st.integers(1, 4))
    p = draw(st.sampled_from([(), (1,), (3,)]))
    radius = draw(st.floats(0.01, 100))

    def array(*shape):
        return draw(arrays(np.float64, shape, elements=_numbers))

    def feature():
        intervals, kinks = draw(st.integers(1, 5)), draw(st.integers(0, 2))
        response = rs.Response(radius, array(intervals + 3, *p), array(kinks), array(kinks, *p))
        shape = st.builds(rs.Shape, _names, st.dictionaries(_names, _floats, max_size=2), _names, _floats)
        shape = draw(st.none() | shape | st.just(rs.Shape("odd", {"float": float("inf")}, "", 0.0)))
        direction = unit(np.random.default_rng(draw(st.integers(0, 99))).standard_normal(dim))
        form = rs.ClosedForm(draw(_names), draw(_floats), draw(_floats), array(*p), array(*p), array(*p))
        band = array(draw(st.integers(0, 3)), *p)
        form = form if draw(st.booleans()) else None
        carrier = unit(np.random.default_rng(draw(st.integers(100, 199))).standard_normal(dim))
        gain = rs.Response(radius, array(intervals + 3, *p), array(kinks), array(kinks, *p))
        gate = Gate(carrier, gain, draw(_floats), array(draw(st.integers(0, 3)), *p)) if draw(st.booleans()) else None
        return rs.Feature(direction, response, draw(_floats), draw(_floats), shape, band, form, gate)

    def plane():
        side = draw(st.integers(1, 4))
        power = draw(arrays(np.float32, (side, side), elements=st.floats(0, 1e6, width=32)))
        return Plane(array(2, dim), power, draw(_numbers), draw(st.integers(0, 9)))

    def checks():
        m = draw(st.integers(0, 3))
        columns = [draw(arrays(np.float64, m, elements=_floats)) for _ in range(4)]
        return Checks(*columns, draw(arrays(np.intp, m, elements=st.integers(-2, 5))))

    whole = st.integers(0, 10**12)
    return rs.Extraction(
        features=tuple(feature() for _ in range(draw(st.integers(0, 3)))),
        bias=array(*p),
        slope=array(dim, *p),
        radius=radius,
        center=array(dim),
        scale=np.abs(array(dim)) + 0.5,
        certificate=rs.Certificate(draw(_verdicts), *(draw(_floats) for _ in range(10)), samples=draw(whole)),
        queries=draw(whole),
        queries_by_stage=draw(st.dictionaries(_names | st.just("float"), whole, max_size=3)),
        history=tuple(
            rs.Round(i, draw(_names), draw(whole), draw(whole), draw(whole), draw(_floats), draw(_names))
            for i in range(draw(st.integers(0, 2)))
        ),
        diagnosis=draw(_names),
        stop=draw(st.sampled_from(list(rs.StopReason))),
        stopped=draw(_names),
        deterministic=draw(st.booleans()),
        dropped=draw(whole),
        seed=draw(_names),
        version=draw(_names),
        planes=tuple(plane() for _ in range(draw(st.integers(0, 2)))),
        checks=checks() if draw(st.booleans()) else None,
        command=draw(_names),
        data_check=rs.DataCheck(draw(whole), draw(whole), *(draw(_floats) for _ in range(6)))
        if draw(st.booleans())
        else None,
    )
