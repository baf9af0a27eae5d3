"""Bilinear layers: their units are found where several outputs determine them, and called one choice of many else."""

import numpy as np
import pytest

import ridgescope as rs
from ridgescope.bilinear import products_of
from ridgescope.search.rank_one import pack
from ridgescope.search.rank_two import has_room, is_isolated, products_in


def symmetric(G, U):
    """The packed g uᵀ + u gᵀ, which do not know which form is which."""
    return pack(G[:, :, None] * U[:, None, :] + U[:, :, None] * G[:, None, :])


def span(rows):
    """An orthonormal basis of the span of independent rows."""
    return np.linalg.svd(rows, full_matrices=False)[2]


class Bilinear:
    """W [(G x) ∘ (U x)] + A x + b."""

    def __init__(self, d, n, p, seed):
        rng = np.random.default_rng(seed)
        self.G, self.U, self.W = (rng.standard_normal(shape) for shape in ((n, d), (n, d), (p, n)))
        self.A, self.b = rng.standard_normal((p, d)), rng.standard_normal(p)

    def __call__(self, X):
        values = ((X @ self.G.T) * (X @ self.U.T)) @ self.W.T + X @ self.A.T + self.b
        return values if len(self.W) > 1 else values[:, 0]


@pytest.fixture(scope="module")
def determined():
    f = Bilinear(5, 3, 4, 1)
    return f, rs.extract(f, dim=5, center=np.full(5, 0.3), rng=1)


def test_the_units_of_a_bilinear_layer_with_enough_outputs_come_back(determined):
    f, found = determined
    assert found.certificate.met
    net = found.network()
    assert isinstance(net, rs.BilinearNetwork)
    ours, true = symmetric(net.W_left, net.W_right), symmetric(f.G, f.U)
    match = rs.match(ours, true)
    assert match.share(1e-9) == 1.0
    assert len(match.false) == 0
    partner = match.partner
    assert np.einsum("pn,nd->npd", net.W_down[:, partner], ours[partner]) == pytest.approx(
        np.einsum("pn,nd->npd", f.W, true), abs=1e-8
    )
    X = np.random.default_rng(0).standard_normal((30, 5))
    assert net.predict(X) == pytest.approx(f(X), abs=1e-8)
    assert net.activations(X).shape == (30, 3)
    assert "found.network()" in found.diagnosis


@pytest.mark.parametrize(("n", "p"), [(3, 1), (4, 2)])
def test_products_that_outputs_do_not_determine_are_not_named(n, p):
    f = Bilinear(5, n, p, 2)
    found = rs.extract(f, dim=5, rng=2)
    assert found.certificate.met
    X = np.random.default_rng(0).uniform(-1, 1, (30, 5))
    assert found.predict(X) == pytest.approx(f(X), abs=1e-6)
    assert products_of(found.features) is None
    assert "one choice" in found.diagnosis
    assert "found.network()" not in found.diagnosis
    with pytest.raises(rs.InvalidInput, match="one choice among many"):
        found.network()


def test_one_product_is_determined_by_one_output():
    f = Bilinear(4, 1, 1, 3)
    net = rs.extract(f, dim=4, rng=3).network()
    assert net.scalar
    assert rs.match(symmetric(net.W_left, net.W_right), symmetric(f.G, f.U)).share(1e-9) == 1.0
    X = np.random.default_rng(0).standard_normal((30, 4))
    assert net.predict(X) == pytest.approx(f(X), abs=1e-8)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("d", "n"), [(4, 2), (6, 5), (8, 12), (12, 30)])
def test_the_products_of_a_span_are_found(d, n, seed):
    rng = np.random.default_rng(seed)
    G, U = rng.standard_normal((2, n, d))
    basis = np.linalg.qr(rng.standard_normal((n, n)))[0] @ span(symmetric(G, U))
    forms = products_in(basis, 1e-13, rng)
    assert forms is not None
    match = rs.match(symmetric(*forms), symmetric(G, U))
    assert match.share(1e-10) == 1.0
    assert len(match.false) == 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "kind", ["too few outputs", "squares", "product and squares", "shared factor", "forms", "in a plane", "three in 3d"]
)
def test_spans_that_do_not_determine_products_give_none(kind, seed):
    rng = np.random.default_rng(seed)
    G, U, v = (rng.standard_normal((6, 7)) for _ in range(3))
    plane = rng.standard_normal((2, 2, 2)) @ rng.standard_normal((2, 7))
    A = rng.standard_normal((3, 7, 7))
    rows = {
        "too few outputs": rng.standard_normal((4, 6)) @ symmetric(G, U),
        "squares": symmetric(v[:4], v[:4]),
        "product and squares": np.concatenate([symmetric(G[:1], U[:1]), symmetric(v[:2], v[:2])]),
        "shared factor": symmetric(np.repeat(G[:1], 3, axis=0), U[:3]),
        "forms": pack(A + A.transpose(0, 2, 1)),
        "in a plane": symmetric(*plane),
        "three in 3d": symmetric(G[:3, :3], U[:3, :3]),
    }[kind]
    assert products_in(span(rows), 1e-13, rng) is None


@pytest.mark.parametrize("seed", range(3))
def test_products_that_share_a_factor_are_not_isolated(seed):
    rng = np.random.default_rng(seed)
    G, U = rng.standard_normal((2, 3, 7))
    a, b = 0.5 * (G[0] + U[0]), 0.5 * (G[0] - U[0])
    assert is_isolated(span(symmetric(G, U)), a, b)
    assert not is_isolated(span(symmetric(G[[0, 0, 1]], U)), a, b)


@pytest.mark.parametrize(("d", "most"), [(2, 1), (3, 1), (4, 3), (6, 10)])
def test_room_for_products(d, most):
    assert [n for n in range(1, 30) if has_room(n, d)] == list(range(1, most + 1))


@pytest.mark.parametrize(("d", "n", "p", "seed"), [(8, 5, 8, 1), (8, 8, 8, 4), (6, 4, 9, 2)])
def test_the_search_proposes_the_squares_of_products(d, n, p, seed):
    """(g·x)(u·x) is a difference of two squares: fits from 2n directions are exact, others stop at the tolerance."""
    f = Bilinear(d, n, p, seed)
    found = rs.extract(f, dim=d, rng=seed)
    assert found.certificate.met
    assert len(found.features) == 2 * n
    assert found.certificate.sup_seen < 1e-10 * found.certificate.std
    net = found.network()
    assert rs.match(symmetric(net.W_left, net.W_right), symmetric(f.G, f.U)).share(1e-9) == 1.0


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("d", "n", "p"), [(12, 12, 12), (16, 20, 32)])
def test_larger_bilinear_layers_come_back(d, n, p, seed):
    f = Bilinear(d, n, p, seed)
    found = rs.extract(f, dim=d, rng=seed)
    net = found.network()
    assert rs.match(symmetric(net.W_left, net.W_right), symmetric(f.G, f.U)).share(1e-8) == 1.0


@pytest.mark.optional
def test_products_are_exported_to_torch(determined):
    torch = pytest.importorskip("torch")
    f, found = determined
    X = np.random.default_rng(3).uniform(-1, 1, (40, 5))
    assert found.network().to_torch()(torch.from_numpy(X)).detach().numpy() == pytest.approx(f(X), abs=1e-8)
