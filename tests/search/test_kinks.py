"""Kinks: found along lines, turned into planes, in and far outside the ball."""

from __future__ import annotations

import numpy as np
import pytest

import ridgescope as rs
from ridgescope.geometry import in_ball, unit
from ridgescope.search import FarField, Kinks, Setting, run_proposer
from ridgescope.search.base import Meter, OutOfQueries
from ridgescope.search.lines import Line, Scan, chord, scan_line, scan_noisy_line
from ridgescope.search.planes import Baseline, confirm, fit_plane, locate_kink

KINKED = ("relu", "leaky_relu", "abs", "triangle")
RADIUS = 3.0
KINKS = Kinks()


class Recorder:
    """An oracle that remembers how much was asked and how far out."""

    def __init__(self, f):
        self.f, self.count, self.farthest = f, 0, 0.0

    def __call__(self, x):
        self.count += len(x)
        self.farthest = max(self.farthest, float(np.linalg.norm(x, axis=1).max()))
        return np.asarray(self.f(x), dtype=float).reshape(len(x), -1)


def setting(f, dim, *, reach=np.inf, noise=None, bandwidth=6.0):
    y = np.asarray(f(in_ball(2000, dim, RADIUS, np.random.default_rng(99)))).reshape(2000, -1)
    noise = 1e-15 * float(np.abs(y).max()) if noise is None else noise
    return Setting(dim, y.shape[1], RADIUS, reach, float(y.std()), noise, bandwidth)


def run(f, *, proposer=KINKS, queries=100_000, seed=0, **options):
    oracle = Recorder(f)
    dim = f.directions.shape[1]
    found = run_proposer(proposer, oracle, setting(f, dim, **options), queries=queries, rng=np.random.default_rng(seed))
    assert found.queries == oracle.count
    return found, oracle


def kinked(f):
    return f.directions[[k in KINKED for k in f.kinds]]


def true_places(f, v, kinds=("relu", "leaky_relu", "abs")):
    """Where the response of the direction nearest v breaks, in the orientation of v."""
    i = int(np.argmax(np.abs(f.directions @ v)))
    sign = np.sign(f.directions[i] @ v)
    return sign * f.drawn[i].parameters["at"] if f.drawn[i].kind in kinds else None


# ---- along a line


def background(t):
    return np.sin(2.0 * t + 0.3) + 0.2 * np.tanh(3.0 * (t - 0.5))


LINE = Line(np.zeros(1), np.ones(1), -3.0, 3.0)


def test_scan_finds_a_kink_on_a_curved_background():
    kink, jump = 0.7123, 0.4
    seen = scan_line(LINE, lambda x: background(x) + jump * np.maximum(x - kink, 0.0), Scan(72, 5, 1e-15, 1e-2, 8))
    (bend,) = seen.bends
    assert bend.at == pytest.approx(kink, abs=1e-2)
    assert bend.jump == pytest.approx([jump], rel=0.1)


def test_scan_of_a_piecewise_linear_function_is_exact_and_cheap():
    rng = np.random.default_rng(0)
    kinks, jumps = np.sort(rng.uniform(-2.5, 2.5, 40)), rng.standard_normal(40)
    asked = Recorder(lambda x: np.maximum(x - kinks, 0.0) @ jumps)
    seen = scan_line(LINE, asked, Scan(33, 1, 1e-14, 1e-6, 24, "sharp"))
    assert np.allclose([b.at for b in seen.bends], kinks, atol=1e-10)
    assert np.allclose([b.jump[0] for b in seen.bends], jumps, atol=1e-9)
    assert asked.count < 12 * 40


def test_two_kinks_of_opposite_sign_in_one_cell_are_not_taken_for_one():
    f = lambda x: np.maximum(x - 0.101, 0.0) - 0.4 * np.maximum(x - 0.102, 0.0)  # noqa: E731
    seen = scan_line(LINE, f, Scan(33, 1, 1e-15, 1e-6, 24, "sharp"))
    assert np.allclose([b.at for b in seen.bends], [0.101, 0.102], atol=1e-12)


def test_scan_sees_nothing_in_a_smooth_or_an_affine_function():
    assert scan_line(LINE, background, Scan(72, 5, 1e-15, 1e-2, 8)).bends == []
    assert scan_line(LINE, lambda x: 3.0 - 2.0 * x, Scan(33, 1, 1e-14, 1e-6, 24, "sharp")).bends == []


def test_kinks_stand_out_of_noise():
    rng = np.random.default_rng(1)
    noisy = lambda x: np.sin(x) + 0.5 * np.abs(x - 0.4) + 1e-3 * rng.standard_normal(x.shape)  # noqa: E731
    (bend,) = scan_noisy_line(LINE, noisy, Scan(72, 5, 1e-3, 0.1, 0)).bends
    assert bend.at == pytest.approx(0.4, abs=0.03)
    assert bend.jump == pytest.approx([1.0], rel=0.1)
    smooth = lambda x: np.sin(x) + 1e-3 * rng.standard_normal(x.shape)  # noqa: E731
    assert scan_noisy_line(LINE, smooth, Scan(72, 5, 1e-3, 0.1, 0)).bends == []


def test_chords_stay_in_the_ball_and_the_meter_in_its_allowance():
    rng = np.random.default_rng(2)
    for _ in range(50):
        line = chord(4, 2.0, rng, offset=1.0)
        ends = np.stack([line.at(line.low), line.at(line.high)])
        assert np.all(np.linalg.norm(ends, axis=1) <= 2.0)
        assert abs(line.origin @ line.along) < 1e-12
    meter = Meter(lambda x: x, 5)
    meter(np.zeros((3, 1)))
    with pytest.raises(OutOfQueries):
        meter(np.zeros((3, 1)))
    assert meter.spent == 3


def test_a_dropped_answer_is_asked_for_again():
    calls = iter([np.array([[1.0], [np.nan]]), np.array([[2.0]])])
    assert np.array_equal(Meter(lambda x: next(calls), 5, retry=True)(np.zeros((2, 1))), [[1.0], [2.0]])


# ---- from a bend to its plane


def test_a_location_does_not_depend_on_the_curvature_of_the_rest():
    """τ is off by O(s³): halving the size must divide the error by about eight."""
    f = lambda x: np.abs(x[:, :1] - 0.1) + np.exp(x[:, :1] + 0.3 * x[:, 1:2])  # noqa: E731
    y, u = np.array([[0.1, 0.4]]), np.array([1.0, 0.0])
    errors = [abs(locate_kink(f, y, u, np.array([2.0]), size)[0][0]) for size in (0.08, 0.04, 0.02)]
    assert np.allclose(np.log2(np.divide(errors[:-1], errors[1:])), 3.0, atol=0.2)


def test_a_plane_is_fitted_and_confirmed():
    rng = np.random.default_rng(3)
    v, w = np.eye(6)[0], np.full(6, 6**-0.5)
    f = lambda x: np.abs(x @ v - 0.2)[:, None] + np.sin(2.0 * x @ w)[:, None]  # noqa: E731
    u = np.array([0.6, 0.8, 0.0, 0.0, 0.0, 0.0])
    x = np.array([0.2, 0.3, -0.4, 0.1, 0.0, 0.5])
    found, point, met = fit_plane(f, x, u, np.array([2.0 * 0.6]), RADIUS, Baseline(1e-4, 1e-3), rng)
    assert met == 1.0
    assert rs.match(found[None], v[None]).angles[0] < 1e-3
    assert point[0] == pytest.approx(0.2, abs=1e-6)
    plane = np.array([2.0])
    assert confirm(f, (v, 0.2, plane), RADIUS, 1e-3, rng, curved=True)
    assert not confirm(f, (w, 0.2, plane), RADIUS, 1e-3, rng, curved=True)


# ---- in the ball


@pytest.mark.parametrize("reach", [np.inf, RADIUS])
@pytest.mark.parametrize(("dim", "units", "most"), [(20, 10, 2000), (10, 15, 1200), (20, 60, 6000)])
@pytest.mark.parametrize("seed", [3, 4])
def test_relu_networks(dim, units, most, reach, seed):
    f = rs.targets.planted(dim, units, ("relu",), rng=seed)
    found, oracle = run(f, reach=reach, seed=seed)
    match = rs.match(found.directions, f.directions)
    assert match.share(1e-5) >= 1.0 - 1.0 / units
    assert len(match.false) == 0
    assert oracle.count <= most
    assert oracle.farthest <= reach
    assert found.complete == (reach == np.inf)  # within the ball no few chords cross every plane
    for v, at, jumps in zip(found.directions, found.kinks, found.jumps, strict=True):
        i = int(np.argmax(np.abs(f.directions @ v)))
        assert at == pytest.approx([true_places(f, v)], abs=1e-4)
        assert np.abs(jumps) == pytest.approx(np.abs(f.coefficients[[i]]), rel=1e-4)


@pytest.mark.parametrize("reach", [np.inf, RADIUS])
def test_where_rounding_hides_planes_nothing_is_said_to_be_complete(reach):
    """In single precision a fraction of the kinks is found, and each of them was crossed twice."""
    rng = np.random.default_rng(1)
    W, b, out = (rng.standard_normal(shape).astype(np.float32) for shape in ((32, 16), 32, 32))

    def layer(x):
        return np.maximum(x.astype(np.float32) @ (W.T / 4) + b, 0) @ out

    layer.directions = unit(W)
    found, _ = run(layer, noise=1e-7, reach=reach, queries=20_000)
    assert 0 < len(found.directions) < 32
    assert not found.complete


def test_a_second_layer_is_no_set_of_planes():
    rng = np.random.default_rng(0)
    W, b, W2, out = (rng.standard_normal(shape) for shape in ((12, 6), 12, (4, 12), 4))
    found = Kinks().propose(
        lambda x: np.maximum(np.maximum(x @ W.T + b, 0) @ W2.T, 0) @ out[:, None],
        Setting(6, 1, RADIUS, np.inf, 10.0, 1e-14, 6.0),
        queries=20_000,
        rng=np.random.default_rng(0),
    )
    assert not found.complete


@pytest.mark.parametrize("case", ["small", "mixed", "superposed", "vector"])
@pytest.mark.parametrize("seed", [5, 6])
def test_kinked_features_among_smooth_ones(case, seed):
    f = rs.targets.CASES[case].make(seed)
    found, oracle = run(f, reach=RADIUS, seed=seed)
    match = rs.match(found.directions, kinked(f))
    assert match.share(1e-3) >= 0.9
    assert len(match.false) <= 1
    assert oracle.farthest <= RADIUS
    assert oracle.count <= 20_000


def test_every_kink_of_a_triangle_wave_belongs_to_one_direction():
    f = rs.targets.planted(4, 2, ("triangle", "tanh"), rng=0)
    found, _ = run(f)
    (direction,) = found.directions
    i = f.kinds.index("triangle")
    assert abs(direction @ f.directions[i]) > 1 - 1e-12
    k, b = f.drawn[i].parameters["frequency"], f.drawn[i].parameters["phase"]
    z = found.kinks[0] * np.sign(direction @ f.directions[i])
    assert len(z) >= 2
    assert np.allclose(np.cos(k * z + b), 0.0, atol=1e-5)


def test_under_noise():
    f = rs.targets.CASES["small"].make(7)
    level = 1e-3 * setting(f, 5).std
    noisy = rs.targets.CASES["small"].make(7, noise=level)
    found, oracle = run(noisy, noise=level / 3**0.5, reach=RADIUS, queries=60_000)
    assert rs.match(found.directions, kinked(f), within=0.1).share(0.1) == 1.0
    assert len(found.directions) <= 6
    assert oracle.farthest <= RADIUS
    assert oracle.count <= 60_000


@pytest.mark.parametrize("queries", [0, 10, 100, 700, 2500])
@pytest.mark.parametrize("case", ["relu", "mixed", "noisy"])
def test_the_budget_is_kept_and_what_is_known_is_returned(case, queries):
    f = rs.targets.CASES[case].make(1)
    noise = 0.0115 if case == "noisy" else None
    found, oracle = run(f, queries=queries, noise=noise)
    assert oracle.count <= queries
    assert found.directions.shape == (len(found.scores), f.dim)
    assert len(found.kinks) == len(found.jumps) == len(found.scores)


def test_answers_may_be_missing():
    f = rs.targets.planted(10, 15, ("relu",), rng=2)
    rng = np.random.default_rng(0)

    def sometimes(x):
        return np.where(rng.random(len(x)) < 0.02, np.nan, f(x))

    sometimes.directions = f.directions
    oracle = Recorder(sometimes)
    found = Kinks().propose(oracle, setting(f, 10), queries=50_000, rng=np.random.default_rng(0))
    assert rs.match(found.directions, f.directions).share(1e-6) >= 0.9


@pytest.mark.parametrize("dim", [1, 2])
def test_few_dimensions(dim):
    f = rs.targets.planted(dim, dim, ("abs",), rng=1)
    found, _ = run(f)
    assert rs.match(found.directions, f.directions).share(1e-6) == 1.0


@pytest.mark.parametrize("case", ["first", "dense", "waves", "twins"])
def test_smooth_functions_have_no_kinks(case):
    found, oracle = run(rs.targets.CASES[case].make(0))
    assert len(found.directions) == 0
    assert oracle.count < 2000


@pytest.mark.parametrize("proposer", [Kinks(), FarField()])
def test_an_affine_function_has_no_kinks(proposer):
    f = rs.targets.planted(6, 0, ("relu",), rng=0)
    found, oracle = run(f, proposer=proposer)
    assert found.directions.shape == (0, 6)
    assert oracle.count < 2000


def test_the_same_seed_gives_the_same_bits():
    f = rs.targets.CASES["mixed"].make(3)
    first, second = (run(f, seed=11)[0] for _ in range(2))
    assert np.array_equal(first.directions, second.directions)


# ---- far outside


@pytest.mark.parametrize("outputs", [None, 4, 10])
@pytest.mark.parametrize("seed", [0, 1])
def test_from_far_away_every_asymptotically_affine_response_is_a_kink(outputs, seed):
    f = rs.targets.planted(8, 20, ("gelu", "softplus", "relu"), outputs=outputs, rng=seed)
    found, oracle = run(f, proposer=FarField(), seed=seed)
    match = rs.match(found.directions, f.directions)
    assert match.share(1e-7) == 1.0
    assert len(match.false) == 0
    assert found.complete
    assert oracle.count < 3000


@pytest.mark.parametrize("seed", range(3))
def test_from_far_away_nearly_parallel_neurons_are_told_apart(seed):
    rng = np.random.default_rng(seed)
    V = unit(rng.standard_normal((60, 24)))
    V[:40] = unit(V[0] + 0.003 * rng.standard_normal((40, 24)))
    W, b = unit(rng.standard_normal((60, 48))), rng.uniform(-0.5, 0.5, 60)

    def layer(X):
        return np.logaddexp(0.0, 4.0 * (X @ V.T) + b) @ W

    layer.directions = V
    found, _ = run(layer, proposer=FarField(), seed=seed)
    assert rs.match(found.directions, V).share(1e-6) == 1.0


def test_from_far_away_tanh_and_bumps_do_not_disturb():
    kinds = ("gelu", "tanh", "softplus", "bump")
    f = rs.targets.planted(8, 16, kinds, rng=2)
    found, _ = run(f, proposer=FarField())
    match = rs.match(found.directions, f.directions[[k in ("gelu", "softplus") for k in f.kinds]])
    assert match.share(1e-6) == 1.0
    assert len(match.false) == 0


@pytest.mark.parametrize(("case", "reach"), [("mixed", np.inf), ("relu", RADIUS)])
def test_the_far_field_gives_up_at_once_where_it_cannot_help(case, reach):
    found, oracle = run(rs.targets.CASES[case].make(0), proposer=FarField(), reach=reach)
    assert len(found.directions) == 0
    assert oracle.count < 100


@pytest.mark.parametrize("queries", [0, 50, 150, 300, 600])
def test_the_far_field_keeps_its_budget(queries):
    f = rs.targets.planted(8, 20, ("gelu",), outputs=4, rng=0)
    _, oracle = run(f, proposer=FarField(), queries=queries)
    assert oracle.count <= queries


# ---- over many seeds


@pytest.mark.heavy
@pytest.mark.parametrize("case", ["relu", "small", "mixed", "superposed", "vector"])
@pytest.mark.parametrize("reach", [np.inf, RADIUS])
def test_recovery_over_seeds(case, reach):
    missed = false = total = 0
    for seed in range(100, 110):
        f = rs.targets.CASES[case].make(seed)
        found, _ = run(f, reach=reach, seed=seed)
        match = rs.match(found.directions, kinked(f), within=1e-2)
        missed, false, total = missed + len(match.missed), false + len(match.false), total + len(match.angles)
    assert missed <= 0.01 * total
    assert false <= 0.01 * total


@pytest.mark.heavy
@pytest.mark.parametrize(("dim", "units"), [(20, 100), (30, 200), (10, 50)])
def test_large_relu_networks(dim, units):
    f = rs.targets.planted(dim, units, ("relu",), rng=0)
    found, oracle = run(f, queries=600_000)
    match = rs.match(found.directions, f.directions)
    assert match.share(1e-6) == 1.0
    assert len(match.false) == 0
    assert oracle.count <= 4 * units * dim


@pytest.mark.heavy
def test_a_wide_gelu_block():
    """As wide, relative to its input, as the blocks of real transformers."""
    f = rs.targets.planted(48, 192, ("gelu",), outputs=48, rng=0, separation=0.01)
    found, oracle = run(f, proposer=FarField(), queries=100_000)
    match = rs.match(found.directions, f.directions)
    assert match.share(1e-6) == 1.0
    assert len(match.false) == 0
    assert oracle.count <= 30_000


# ---- in single precision


class SingleLayer:
    """relu(x Wᵀ + b) Oᵀ, or another activation, all in float32."""

    def __init__(self, dim, units, outputs, seed, activation=lambda y: np.maximum(y, 0)):
        rng = np.random.default_rng(seed)
        self.W, self.b = rng.uniform(-1, 1, (units, dim)) / np.sqrt(dim), rng.uniform(-1, 1, units) / np.sqrt(dim)
        self.O, self.activation = rng.uniform(-1, 1, (outputs, units)) / np.sqrt(units), activation

    @property
    def directions(self):
        return unit(self.W)

    def __call__(self, X):
        W, b, out = (a.astype(np.float32) for a in (self.W, self.b, self.O))
        return self.activation(X.astype(np.float32) @ W.T + b) @ out.T


@pytest.mark.parametrize(("dim", "units", "outputs", "seed"), [(16, 32, 16, 0), (16, 32, 16, 1), (20, 30, 4, 2)])
def test_planes_of_a_relu_layer_in_single_precision(dim, units, outputs, seed):
    layer = SingleLayer(dim, units, outputs, seed)
    found, _ = run(layer, noise=2.5e-8)
    assert rs.match(found.directions, layer.directions, within=0.02).share(0.02) == 1.0
    assert len(found.directions) == units
    assert found.complete
    assert found.only


def test_what_lines_do_not_reach_in_single_precision_is_not_said_to_be_complete():
    """Inside the ball alone, planes near its edge are seldom crossed."""
    found, _ = run(SingleLayer(16, 32, 16, 0), noise=2.5e-8, reach=RADIUS)
    assert len(found.directions) > 0
    assert not found.complete


@pytest.mark.parametrize("steep", [1.0, 8.0])
def test_smooth_layers_in_single_precision_have_no_kinks(steep):
    found, _ = run(SingleLayer(16, 32, 16, 0, lambda y: np.tanh(steep * y)), noise=3e-8)
    assert len(found.directions) == 0
    assert not found.only


def test_two_planes_in_two_dimensions_in_single_precision_take_few_queries():
    """Between kinks they are straight, also where rounding is larger than at most points, whichever are drawn."""
    layer = SingleLayer(2, 2, 1, 4)
    for seed in range(20):
        found, oracle = run(layer, noise=1.5e-8, seed=seed)
        assert found.only
        assert oracle.count < 2500


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("dim", "units", "outputs"), [(64, 256, 64), (104, 160, 104), (32, 200, 8), (40, 150, 20), (128, 512, 128)]
)
def test_whole_relu_layers_in_single_precision(dim, units, outputs):
    layer = SingleLayer(dim, units, outputs, 7)
    found = rs.extract(layer, dim=dim, rng=7)
    assert found.certificate.met
    assert len(found.features) == units
    assert rs.match(found.directions, layer.directions).share(1e-5) == 1.0


@pytest.mark.parametrize(("dim", "units", "seed"), [(5, 20, 905), (8, 30, 3)])
def test_relu_layers_with_one_output_in_single_precision(dim, units, seed):
    """One output does not show which rows of a gradient jump are wrong; two steps of each row do."""
    layer = SingleLayer(dim, units, 1, seed)
    found, _ = run(layer, noise=2.5e-8)
    match = rs.match(found.directions, layer.directions, within=0.01)
    assert match.share(0.01) == 1.0
    assert len(match.false) == 0


@pytest.mark.heavy
@pytest.mark.parametrize(("dim", "units"), [(10, 64), (20, 64), (50, 50)])
@pytest.mark.parametrize("seed", [21, 22])
def test_whole_relu_layers_with_one_output_in_single_precision(dim, units, seed):
    layer = SingleLayer(dim, units, 1, seed)
    found = rs.extract(layer, dim=dim, rng=seed)
    assert found.certificate.met
    match = rs.match(found.directions, layer.directions)
    assert match.share(1e-3) == 1.0
    assert len(match.false) == 0
