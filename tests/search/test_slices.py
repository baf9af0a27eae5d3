"""The Fourier search: transforms against closed forms, the lift against planted rays, whole searches against
truth."""

from __future__ import annotations

import numpy as np
import pytest

from ridgescope import match
from ridgescope.geometry import Floats, angle, random_basis, random_directions, unit
from ridgescope.search import Ask, Setting, Slices, run_proposer
from ridgescope.search.lift import lift, lift_design, refine_lift
from ridgescope.search.spectrum import Frame, picture, strong_cells, transform
from ridgescope.targets import CASES, planted


def frame(dim: int, rank: int = 2, half: int = 24, step: float = 0.4, seed: int = 0) -> Frame:
    basis = random_basis(dim, dim, np.random.default_rng(seed))
    extent = half * step
    return Frame(basis, 0.3 * basis[rank:].sum(axis=0), rank, step, half, extent / 3.2, extent)


def waves(turns: Floats, phases: Floats) -> Ask:
    """Σ cos(turns·x + phase) on R^d."""
    return lambda X: np.cos(X @ turns.T + phases).sum(axis=1, keepdims=True)


class Counted:
    """An oracle that counts rows, remembers the farthest, and can drop answers."""

    def __init__(self, target, outputs: int = 1, drop: float = 0.0) -> None:
        self.target, self.outputs, self.drop = target, outputs, drop
        self.rows, self.farthest = 0, 0.0

    def __call__(self, X: Floats) -> Floats:
        self.rows += len(X)
        self.farthest = max(self.farthest, float(np.linalg.norm(X, axis=1).max()))
        Y = np.array(self.target(X), dtype=float).reshape(len(X), self.outputs)
        if self.drop:
            hit = np.random.default_rng(self.rows).random(len(X)) < self.drop
            Y[hit] = np.nan
        return Y


def setting(target, bandwidth: float = 6.0, reach: float = np.inf, **more) -> Setting:
    return Setting(target.dim, target.outputs or 1, 3.0, reach, 1.0, max(1e-12, target.noise), bandwidth, **more)


# -- the spectrum --


def test_transform_of_a_wave_is_the_window_s_own_transform_moved_there():
    f = frame(3, half=32)
    y = np.array([3.1, -2.2])
    turn = y @ f.basis[:2] + 0.7 * f.basis[2]
    c = transform(waves(turn[None], np.array([0.4])), f, 1e-13)
    phase = 0.4 + turn @ f.offset
    offset = c.frequencies() - y
    gaussian = np.exp(-0.5 * f.window**2 * np.sum(offset**2, axis=-1)) * 2 * np.pi * f.window**2
    expected = 0.5 * np.exp(1j * phase) * gaussian / (f.side * f.step) ** 2
    near = np.linalg.norm(offset, axis=-1) < 3.0 / f.window
    # the window is cut where it has fallen to 0.006
    assert np.abs(c.coefficients[0][near] - expected[near]).max() < 0.006 * np.abs(expected).max()


def test_coefficients_synthesise_the_windowed_slice():
    f = frame(4, half=8)
    rng = np.random.default_rng(1)
    c = transform(waves(rng.standard_normal((3, 4)), np.zeros(3)), f, 1e-13)
    back = np.exp(1j * c.s @ c.frequencies().reshape(-1, 2).T) @ c.coefficients[0].ravel()
    w = f.weight(c.s)
    affine = np.column_stack([np.ones(len(c.s)), c.s])
    fit = np.linalg.lstsq(affine * np.sqrt(w)[:, None], c.values * np.sqrt(w)[:, None], rcond=None)[0]
    assert np.allclose(back, (w[:, None] * (c.values - affine @ fit))[:, 0], atol=1e-12)


def test_an_affine_function_has_no_rays():
    f = frame(5)
    c = transform(lambda X: (1.0 + X @ np.arange(5.0))[:, None], f, 1e-13)
    assert np.abs(c.coefficients).max() < 1e-12


def test_peaks_lie_on_the_rays_between_the_cells():
    f = frame(2, half=40)
    v = np.array([[np.cos(0.83), np.sin(0.83)]])
    cells = strong_cells(transform(lambda X: np.tanh(2 * X @ v.T), f, 1e-13), 50, 2.6 / f.window)
    clear = cells.strengths > 0.05 * cells.strengths[0]
    assert clear.sum() >= 2  # a ray is seen again in every ring it crosses
    assert angle(cells.rays[clear] @ f.basis, np.repeat(v, clear.sum(), axis=0)).max() < 2e-3


def test_noise_alone_hardly_makes_a_peak():
    rng = np.random.default_rng(3)
    f = frame(3, half=40)
    counts = [
        len(strong_cells(transform(lambda X: rng.standard_normal((len(X), 1)), f, 1.0), 50, 2.6 / f.window).peaks)
        for _ in range(5)
    ]
    assert sum(counts) <= 2


def test_picture_is_small_single_precision_and_centred():
    plane = picture(transform(waves(np.ones((1, 3)), np.zeros(1)), frame(3, half=150, step=0.1), 1e-13))
    assert plane.power.dtype == np.float32
    assert max(plane.power.shape) <= 256
    i, j = np.unravel_index(plane.power.argmax(), plane.power.shape)
    centre = np.array(plane.power.shape) // 2
    y = np.abs(np.array([i, j]) - centre) * plane.step
    assert np.allclose(y, np.abs(plane.basis @ np.ones(3)), atol=2 * plane.step)


# -- the lift --


def lifted(ask: Ask, f: Frame, count: int, ladder: tuple[float, ...] = (0.1,), **more):
    spectrum = transform(ask, f, 1e-13)
    cells = strong_cells(spectrum, 60, 2.6 / f.window)
    design = lift_design(spectrum, cells, count, f.extent, np.random.default_rng(0))
    result = lift(ask, design, ladder[0], **more)
    for delta in ladder[1:]:
        result = refine_lift(ask, design, result, delta, f.rank)
    return spectrum, cells, result


@pytest.mark.parametrize("rank", [2, 3])
def test_the_lift_of_one_wave_is_exact(rank: int):
    f = frame(7, rank=rank, half=14)
    turn = 4.0 * unit(np.arange(1.0, 8.0)[None] * [1, -1, 1, 1, -1, 1, -1])
    _, _, result = lifted(waves(turn, np.ones(1)), f, 200, (0.1, 0.4))
    ratio = result.wavevectors[0] / np.linalg.norm(result.wavevectors[0, :rank])
    truth = turn[0] @ f.basis.T / np.linalg.norm(turn[0] @ f.basis[:rank].T)
    assert np.abs(np.abs(ratio[rank:]) - np.abs(truth[rank:])).max() < 2e-3  # what the lift adds
    assert angle(result.directions(f)[:1], unit(turn))[0] < result.angle_error[0]
    assert result.growth[0] < 1e-3


def test_the_lift_of_one_ray_is_exact_in_every_ring():
    f = frame(6, half=40)
    v = random_directions(1, 6, np.random.default_rng(5))
    _, cells, result = lifted(lambda X: np.tanh(2.0 * X @ v.T), f, 400)
    clear = cells.strengths > 0.05 * cells.strengths[0]
    assert clear.sum() >= 2
    assert angle(result.directions(f)[clear], np.repeat(v, clear.sum(), axis=0)).max() < 0.02


def test_a_wave_beyond_the_nyquist_frequency_is_put_back_where_it_came_from():
    f = frame(4, half=24, step=0.4)  # Nyquist: 7.9
    y = np.array([9.3, -2.0])
    turn = y @ f.basis[:2] + 3.0 * f.basis[2] - 1.0 * f.basis[3]
    _, cells, result = lifted(waves(turn[None], np.zeros(1)), f, 300, (0.05, 0.2))
    assert np.linalg.norm(cells.peaks[0]) < 9.0
    assert angle(result.directions(f)[:1], unit(turn)[None])[0] < 5e-3


def test_a_few_points_say_what_the_whole_shifted_slice_says():
    rng = np.random.default_rng(2)
    f = frame(5, half=40)
    turns = np.array([[3.0, 1.0], [0.0, 4.0], [4.0, -3.0], [-2.0, 6.0]]) @ f.basis[:2]
    turns = turns + rng.uniform(-3.0, 3.0, (4, 3)) @ f.basis[2:]
    ask = waves(turns, rng.uniform(0, 6, 4))
    spectrum, cells, few = lifted(ask, f, 200, (0.05,))
    shifted = [
        transform(ask, Frame(f.basis, f.offset + 0.05 * b, 2, f.step, f.half, f.window, f.extent), 1e-13)
        for b in f.basis
    ]
    peak = np.rint(cells.peaks[:4] / f.cell).astype(int) % f.side
    at = [(0, *p) for p in peak]
    whole = np.array([[np.angle(c.coefficients[i] / spectrum.coefficients[i]) / 0.05 for c in shifted] for i in at])
    assert few.queries == 5 * 200
    assert 5 * few.queries < 5 * spectrum.queries  # the saving, on a slice as small as this
    assert np.abs(few.wavevectors[:4] - whole).max() < 0.05


def test_a_gradient_plane_replaces_all_shifts():
    rng = np.random.default_rng(4)
    f = frame(8, half=30)
    turns = np.array([[3.0, 1.0], [0.0, 4.0], [4.0, -3.0]]) @ f.basis[:2]
    turns = turns + rng.uniform(-2.0, 2.0, (3, 6)) @ f.basis[2:]

    def gradient(X: Floats) -> Floats:
        return (-np.sin(X @ turns.T) @ turns)[:, None, :]

    _, _, result = lifted(waves(turns, np.zeros(3)), f, 150, gradient=gradient)
    assert result.queries == 150
    assert match(result.directions(f)[:3], turns).angles.max() < 5e-3


def test_two_waves_in_one_cell_fail_the_tests():
    f = frame(5, half=24)
    y = np.array([3.0, 1.0])
    out = np.array([[2.0, 1.0, -1.0], [-2.0, 1.5, 2.0]])
    turns = y @ f.basis[:2] + out @ f.basis[2:]
    _, _, result = lifted(waves(turns, np.zeros(2)), f, 300)
    clean = lifted(waves(turns[:1], np.zeros(1)), f, 300)[2]
    assert result.angle_error[0] > 3 * clean.angle_error[0]
    assert result.growth[0] > 100 * clean.growth[0]


# -- whole searches --


def search(target, queries: int, seed: int = 0, *, drop: float = 0.0, **more):
    ask = Counted(target, target.outputs or 1, drop)
    known = setting(target, **more)
    proposal = run_proposer(Slices(), ask, known, queries=queries, rng=np.random.default_rng(seed))
    assert ask.rows <= proposal.queries <= queries
    assert proposal.directions.shape == (len(proposal.scores), target.dim)
    assert np.allclose(np.linalg.norm(proposal.directions, axis=1), 1.0)
    assert np.all(np.diff(proposal.scores) <= 0)
    return ask, proposal


@pytest.mark.parametrize("seed", range(3))
def test_first_is_found(seed: int):
    target = CASES["first"].make(seed)
    _, proposal = search(target, 6_000, seed)
    assert match(proposal.directions, target.directions).share(0.1) == 1.0
    assert len(proposal.scores) <= 16


@pytest.mark.parametrize("seed", [10])
def test_waves_are_found_exactly_enough_for_the_fit(seed: int):
    target = CASES["waves"].make(seed)
    _, proposal = search(target, 300_000, seed, bandwidth=12.0)
    angles = match(proposal.directions, target.directions).angles
    assert np.mean(angles < 0.01) >= 0.8
    assert np.mean(angles < 0.03) >= 0.95
    assert len(proposal.scores) <= 50


@pytest.mark.parametrize("bandwidth", [6.0, 24.0])
def test_a_bandwidth_wrong_by_a_factor_of_two_does_no_harm(bandwidth: float):
    target = CASES["waves"].make(12)
    _, proposal = search(target, 200_000, bandwidth=bandwidth)
    assert match(proposal.directions, target.directions).share(0.1) >= 0.9


def test_small_is_found_well_enough_to_start_from():
    target = CASES["small"].make(20)
    _, proposal = search(target, 30_000)
    angles = np.arccos(np.minimum(np.abs(target.directions @ proposal.directions.T), 1.0)).min(axis=1)
    assert np.mean(angles < 0.3) >= 0.7


def test_reach_is_respected_and_waves_found_within_it():
    target = planted(5, 6, ("sine",), frequencies=(6.0, 12.0), rng=1)
    ask, proposal = search(target, 60_000, bandwidth=9.0, reach=3.0)
    assert ask.farthest <= 3.0 * (1 + 1e-12)
    assert match(proposal.directions, target.directions).share(0.1) == 1.0


@pytest.mark.parametrize("queries", [0, 10, 300, 1_000, 5_000, 20_000])
@pytest.mark.parametrize("reach", [3.0, 4.0, np.inf])
def test_no_budget_is_overspent_nor_reach_left(queries: int, reach: float):
    target = CASES["mixed"].make(0)
    ask, proposal = search(target, queries, reach=reach)
    assert ask.farthest <= reach * (1 + 1e-12)
    assert ask.rows or not len(proposal.scores)


def test_two_dimensions_need_no_lift():
    target = planted(2, 3, ("tanh", "sine", "abs"), separation=0.4, rng=3)
    _, proposal = search(target, 8_000)
    assert match(proposal.directions, target.directions).share(0.05) == 1.0


def test_one_dimension_has_one_direction():
    target = planted(1, 1, ("sine",), rng=0)
    ask, proposal = search(target, 100)
    assert proposal.directions.tolist() == [[1.0]]
    assert ask.rows == 0


def test_vector_outputs_share_their_rays():
    target = planted(6, 8, ("sine",), outputs=3, frequencies=(3.0, 8.0), rng=5)
    _, proposal = search(target, 60_000, bandwidth=8.0)
    assert match(proposal.directions, target.directions).share(0.05) == 1.0
    assert len(proposal.planes) >= 1


def test_dropped_answers_are_tolerated():
    target = planted(5, 5, ("sine",), frequencies=(3.0, 6.0), rng=7)
    _, proposal = search(target, 60_000, bandwidth=6.0, drop=0.01)
    assert match(proposal.directions, target.directions).share(0.05) >= 0.8


def test_noise_sets_the_floor():
    target = planted(5, 5, ("sine",), frequencies=(3.0, 6.0), noise=0.1, rng=8)
    _, proposal = search(target, 60_000, bandwidth=6.0)
    assert match(proposal.directions, target.directions).share(0.05) == 1.0
    assert len(proposal.scores) <= 15


def test_gradients_are_used_where_offered():
    target = planted(8, 6, ("sine",), frequencies=(3.0, 6.0), rng=9)
    step = 1e-5

    def gradient(X: Floats) -> Floats:
        moved = [(target(X + step * e) - target(X - step * e)) / (2 * step) for e in np.eye(8)]
        return np.stack(moved, axis=1)[:, None, :]

    _, proposal = search(target, 20_000, bandwidth=6.0, gradient=gradient)
    assert match(proposal.directions, target.directions).share(0.05) == 1.0


def test_the_same_seed_gives_the_same_bits():
    target = CASES["first"].make(1)
    a, b = (search(target, 4_000, 3)[1] for _ in range(2))
    assert np.array_equal(a.directions, b.directions)
    assert a.note == b.note


def test_an_affine_function_has_nothing_to_propose():
    target = planted(4, 0, rng=0)
    _, proposal = search(target, 5_000)
    assert len(proposal.scores) == 0


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(30, 35))
@pytest.mark.parametrize(
    ("name", "bandwidth", "queries", "reach", "within", "share"),
    [
        ("first", 6.0, 6_000, np.inf, 0.1, 1.0),
        ("small", 6.0, 60_000, np.inf, 0.3, 0.75),
        ("waves", 12.0, 1_000_000, np.inf, 0.03, 0.95),
        ("waves", 12.0, 1_000_000, 3.0, 0.1, 0.95),
        ("extreme", 6.0, 600_000, np.inf, 0.3, 0.75),
        ("mixed", 6.0, 200_000, np.inf, 0.3, 0.4),
    ],
)
def test_recovery(name: str, bandwidth: float, queries: int, reach: float, within: float, share: float, seed: int):
    target = CASES[name].make(seed)
    _, proposal = search(target, queries, seed, bandwidth=bandwidth, reach=reach)
    angles = np.arccos(np.minimum(np.abs(target.directions @ proposal.directions.T), 1.0)).min(axis=1)
    assert np.mean(angles < within) >= share
