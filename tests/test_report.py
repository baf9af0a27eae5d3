"""The report is one file, opens offline, and escapes what came from outside."""

from dataclasses import replace

import numpy as np

import ridgescope as rs


def test_a_report_tells_the_result_and_needs_no_network(tmp_path):
    target = rs.targets.CASES["first"].make(5)
    found = rs.extract(target, rng=5)
    path = found.report(tmp_path / "new" / "report.html")
    text = path.read_text(encoding="utf-8")
    assert "4 features in 3 dimensions" in text
    assert found.certificate.sentence.split(":")[0] in text
    assert "<script src" not in text  # plotly is inside
    assert len(text) < 10_000_000


def test_words_from_outside_are_escaped(tmp_path):
    found = rs.extract(lambda X: X[:, 0], dim=2)
    hostile = replace(found, stopped="<script>alert(1)</script>", queries_by_stage={"<b>": 1})
    text = hostile.report(tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text
    assert "<td><b>" not in text


def test_vector_outputs_draw_each_component():
    from ridgescope.report.figures import responses

    found = rs.extract(rs.targets.planted(3, 2, ("tanh",), rng=1, outputs=2), rng=0)
    lines = [t for t in responses(found).data if t.mode == "lines"]
    assert len(lines) == 2 * len(found.features)
    assert all(np.isfinite(t.y).all() for t in lines)
