"""The examples run, and say what their pages say; the full ones are heavy."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent


def loaded(path):
    """The script as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


toy = loaded("examples/toy_superposition.py")
transformer = loaded("examples/transformer_block.py")
gated = loaded("examples/gated_block.py")


def test_gradients_of_the_toy_transformer_are_those_of_its_loss():
    check_gradient(transformer.initial, transformer.loss_and_gradient)


def test_gradients_of_the_gated_transformer_are_those_of_its_loss():
    check_gradient(gated.weights, gated.loss_and_gradient)


def check_gradient(initial, loss_and_gradient):
    rng = np.random.default_rng(0)
    w = initial(6, 10, 5, rng)
    tokens, answer = transformer.sums(5)
    _, gradient = loss_and_gradient(w, tokens, answer)
    assert set(gradient) == set(w)
    for name in w:
        direction = rng.standard_normal(w[name].shape)
        up, down = (loss_and_gradient({**w, name: w[name] + h * direction}, tokens, answer)[0] for h in (1e-5, -1e-5))
        assert (up - down) / 2e-5 == pytest.approx(float((gradient[name] * direction).sum()), rel=1e-6)


def test_five_sparse_features_in_the_plane_are_a_pentagon_and_come_back_from_queries(tmp_path):
    pentagon = toy.run("pentagon", 5, 2, 0.95, steps=1500, sae_steps=300)
    assert pentagon.found.certificate.met
    assert len(pentagon.arrows) == 5
    assert pentagon.angle < 1e-6
    assert np.allclose(toy.corners(pentagon.arrows), 72, atol=2)
    svg = toy.picture([pentagon])
    assert svg.count("<line") == 10
    assert "pentagon" in toy.table([pentagon])


def test_neurons_of_a_small_block_come_back_from_queries():
    opened = transformer.run(d=12, n=30, modulus=11, tolerance=5e-2)
    assert opened.accuracy > 0.95
    assert opened.found.certificate.met
    assert opened.match.share(1e-2) == 1.0
    assert not len(opened.match.false)
    assert "30, 12, 12" in transformer.table(opened)


def test_units_of_a_small_gated_block_come_back_through_its_norm():
    opened = gated.run(d=12, n=24, modulus=11)
    assert opened.accuracy > 0.95
    assert opened.found.certificate.met
    assert opened.found.structure.verdict == "exact"
    assert opened.matter.all()
    assert opened.match.share(1e-6) == 1.0
    assert not len(opened.match.gates.false)
    assert max(gated.weight_errors(opened)) < 1e-6
    assert "24, 12, 12" in gated.table(opened)
    assert gated.picture(opened).count("<text") == 16


@pytest.mark.heavy
def test_the_superposition_page_shows_what_its_example_prints():
    runs = [toy.run(*case) for case in toy.CASES]
    for one in runs:
        assert one.found.certificate.met
        assert len(one.arrows) == len(one.W)
        assert one.angle < 1e-3
        assert (
            toy.mean_max_cosine(one.W, one.arrows)
            >= max(toy.mean_max_cosine(one.W, D) for D in one.dictionaries.values()) - 1e-6
        )
    assert cells(toy.table(runs), 3) == cells((ROOT / "docs/examples_superposition.md").read_text(), 3)
    assert toy.picture(runs[:2]).count("<line") == (ROOT / "docs/superposition.svg").read_text().count("<line")


@pytest.mark.heavy
def test_all_128_neurons_of_the_block_come_back():
    opened = transformer.run()
    assert opened.accuracy == 1.0
    assert opened.found.certificate.met
    assert opened.match.share(1e-3) == 1.0
    assert not len(opened.match.false)


def cells(text, columns):
    """The first columns of the rows that have a fraction n/d."""
    rows = re.findall(r"^\|(.*\d+/\d+.*)\|$", text, re.MULTILINE)
    return [row.split("|")[:columns] for row in rows]


@pytest.mark.heavy
def test_the_gated_page_shows_what_its_example_prints():
    opened = gated.run()
    rows = [row for row in gated.table(opened).splitlines() if not any(w in row for w in ("angle", "worst"))]
    page = (ROOT / "docs/examples_gated.md").read_text().splitlines()
    assert [row for row in rows if row not in page] == []
    assert opened.match.share(1e-4) == 1.0
    assert max(gated.weight_errors(opened)) < 1e-4
