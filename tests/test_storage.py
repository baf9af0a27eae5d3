"""Saved results come back bit for bit, and anything else is refused."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ridgescope as rs
from made import CERTIFICATE, extraction, extractions


def same(a, b, within=0.0):
    """Equal to the bit, NaN included, arrays and dataclasses all the way down; or but for relative errors `within`."""
    if isinstance(a, np.ndarray):
        alike = a.dtype == b.dtype and a.shape == b.shape
        return alike and (a.tobytes() == b.tobytes() if not within else np.allclose(a, b, within, within))
    if dataclasses.is_dataclass(a):
        fields = [f.name for f in dataclasses.fields(a)]
        return type(a) is type(b) and all(same(getattr(a, f), getattr(b, f), within) for f in fields)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k], within) for k in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(same(x, y, within) for x, y in zip(a, b, strict=True))
    if isinstance(a, float):
        return a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= within * abs(b)
    return a == b


@pytest.fixture
def saved(tmp_path):
    return extraction(2).save(tmp_path / "out")


def refused(folder, *says):
    with pytest.raises(rs.FileProblem) as caught:
        rs.load(folder)
    message = str(caught.value)
    assert all(part in message for part in says), message
    return message


@given(found=extractions())
def test_a_saved_result_comes_back_to_the_bit(found):
    with tempfile.TemporaryDirectory() as folder:
        assert found.save(folder) == Path(folder)
        assert same(rs.load(folder), found)


def test_a_scalar_result_stays_scalar(tmp_path):
    found = extraction()
    again = rs.load(found.save(tmp_path))
    X = np.random.default_rng(0).standard_normal((7, 3))
    assert again.bias.shape == ()
    assert again.predict(X).tobytes() == found.predict(X).tobytes()
    assert repr(again) == repr(found)


def test_two_files_and_no_pickle(saved):
    assert sorted(p.name for p in saved.iterdir()) == ["arrays.safetensors", "result.json"]
    text = json.loads((saved / "result.json").read_text())
    assert (text["format"], text["format_version"], text["version"]) == ("ridgescope", 2, rs.__version__)


def test_saving_again_replaces_the_old_result(saved):
    extraction(features=1).save(saved)
    assert len(rs.load(saved).features) == 1


def test_numbers_of_numpy_are_numbers(tmp_path):
    certificate = dataclasses.replace(CERTIFICATE, rms=np.float64(0.5), samples=np.int64(9))
    found = extraction(certificate=certificate, queries=np.int64(7), radius=np.float64(2.0))
    again = rs.load(found.save(tmp_path))
    assert (again.queries, again.radius, again.certificate.rms, again.certificate.samples) == (7, 2.0, 0.5, 9)
    assert again.certificate.met is True


def test_folders_are_made(tmp_path):
    assert rs.load(extraction().save(tmp_path / "a" / "b")).queries == 12345


def test_a_result_of_format_1_still_loads():
    found = rs.load(Path(__file__).parent / "saved" / "format_1")
    assert same(found.certificate, CERTIFICATE)
    assert same(found.features, extraction(2).features, within=1e-12)  # processors differ in the last bits
    assert found.stop is rs.StopReason.CERTIFIED
    assert (len(found.planes), len(found.checks), found.command) == (1, 2, "ridgescope extract m:f --dim 3")


@pytest.mark.parametrize(
    ("stopped", "stop"),
    [
        ("Certified: fresh queries agree with the model to the noise.", rs.StopReason.CERTIFIED),
        (f"Budget exhausted: {rs.BudgetExhausted(90, 20, 100, 'fit')}", rs.StopReason.BUDGET),
        ("Interrupted after 12 queries.", rs.StopReason.INTERRUPTED),
        ("Stopped: three rounds in a row brought no better fit.", rs.StopReason.UNKNOWN),
        ("", rs.StopReason.UNKNOWN),
    ],
)
def test_files_without_a_reason_get_it_from_their_sentence(saved, stopped, stop):
    path = saved / "result.json"
    text = json.loads(path.read_text())
    del text["stop"]
    path.write_text(json.dumps(text | {"stopped": stopped}))
    assert rs.load(saved).stop is stop


# -- files that are no results -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["result.json", "arrays.safetensors"])
@given(data=st.data())
def test_a_file_cut_short_anywhere_is_noticed(name, data):
    with tempfile.TemporaryDirectory() as folder:
        path = extraction(features=1).save(folder) / name
        whole = path.read_bytes()
        cut = data.draw(st.integers(0, len(whole) - 3))
        path.write_bytes(whole[:cut])
        refused(folder, str(path), "truncated")


@given(data=st.data())
def test_a_flipped_byte_in_the_arrays_is_noticed(data):
    with tempfile.TemporaryDirectory() as folder:
        path = extraction(features=1).save(folder) / "arrays.safetensors"
        content = bytearray(path.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1
        path.write_bytes(content)
        refused(folder, str(path), "truncated or replaced")


def test_arrays_of_another_save_are_noticed(tmp_path, saved):
    other = extraction(2, queries=7, bias=np.ones(2)).save(tmp_path / "other")
    (other / "arrays.safetensors").replace(saved / "arrays.safetensors")
    refused(saved, "is not the file that result.json was saved with", "Restore both files")


def test_a_missing_folder_and_a_missing_file(tmp_path, saved):
    refused(tmp_path / "nowhere", "cannot read", "nowhere", "No such file", "the folder that `save` wrote")
    (saved / "arrays.safetensors").unlink()
    refused(saved, "cannot read", "arrays.safetensors", "No such file")


def test_a_file_in_place_of_the_folder(saved):
    refused(saved / "result.json", "cannot read", "the folder that `save` wrote")


@pytest.mark.parametrize("text", ["{}", "[]", "3", "null", '{"format": "onnx"}', '"ridgescope"'])
def test_foreign_json_is_no_result(saved, text):
    (saved / "result.json").write_text(text)
    refused(saved, 'not a ridgescope result (no "format": "ridgescope" in it)')


@pytest.mark.parametrize("content", [b"", b"hello", b"\xff\xfe\x00", b"[" * 100_000, b"\x80\x04\x95"])
def test_what_is_no_json_at_all(saved, content):
    (saved / "result.json").write_bytes(content)
    refused(saved, "is not complete JSON", "truncated or not a saved result")


@pytest.mark.parametrize("version", [0, 4, None, "1", True, 2.0])
def test_another_format_version_is_named(saved, version):
    edit(saved, format_version=version)
    refused(saved, f"has format version {version!r}; this ridgescope reads versions 1, 2 and 3", "save it again")


def edit(folder, **changes):
    path = folder / "result.json"
    text = json.loads(path.read_text())
    path.write_text(json.dumps({**text, **changes}))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"radius": -1.0}, "radius must be a positive number"),
        ({"radius": "three"}, "three"),
        ({"queries": None}, "queries is None, which is not of type int"),
        ({"queries": True}, "queries is True, which is not of type int"),
        ({"stopped": 3}, "stopped is 3, which is not of type str"),
        ({"stop": "bored"}, "'bored' is not a valid StopReason"),
        ({"certificate": {"met": True}}, "KeyError"),
        ({"certificate": None}, "TypeError"),
        ({"features": [{"angle_error": 0.0, "strength": 1.0, "shape": None}] * 3}, "feature.2.direction"),
        ({"features": [{}]}, "angle_error"),
        ({"history": [1]}, "TypeError"),
        ({"planes": [{"step": 1.0, "round": 0}]}, "plane.0.basis"),
        ({"queries_by_stage": [1, 2]}, "AttributeError"),
    ],
)
def test_an_edited_result_is_not_believed(saved, changes, says):
    edit(saved, **changes)
    refused(saved, "does not describe a complete result", says, "edited or damaged after saving")


def test_arrays_that_do_not_fit_each_other_are_not_believed(saved):
    import hashlib

    from safetensors.numpy import load, save

    arrays = load((saved / "arrays.safetensors").read_bytes())
    for name, wrong in [
        ("slope", np.zeros((2, 2))),
        ("scale", np.zeros(5)),
        ("feature.0.direction", np.zeros(4)),
        ("feature.0.coefficients", np.zeros(9)),
        ("feature.0.kink_weights", np.ones((2, 2))),
    ]:
        packed = save({**arrays, name: wrong})
        (saved / "arrays.safetensors").write_bytes(packed)
        edit(saved, arrays_sha256=hashlib.sha256(packed).hexdigest())
        refused(saved, "does not describe a complete result", "fit")


def test_arrays_that_are_no_safetensors(saved):
    import hashlib

    (saved / "arrays.safetensors").write_bytes(b"not tensors at all")
    edit(saved, arrays_sha256=hashlib.sha256(b"not tensors at all").hexdigest())
    refused(saved, "is not a safetensors file")


@pytest.mark.parametrize("ending", ["", ".partial"])
@pytest.mark.parametrize("file", ["result.json", "arrays.safetensors"])
def test_saving_writes_through_no_link(tmp_path, file, ending):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / f"{file}{ending}").symlink_to(precious)
    found = extraction(2)
    assert same(rs.load(found.save(tmp_path / "out")), found)
    assert precious.read_text() == "mine"


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs a file without end")
@pytest.mark.parametrize("name", ["result.json", "arrays.safetensors"])
def test_a_file_without_end_is_not_read(saved, name):
    (saved / name).unlink()
    (saved / name).symlink_to("/dev/zero")
    code = (
        "import resource, sys, ridgescope as rs\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))\n"
        "try:\n    rs.load(sys.argv[1])\nexcept rs.FileProblem as problem:\n    print(problem)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(saved)], capture_output=True, text=True, timeout=30)
    assert "is a device or a pipe" in done.stdout, done.stderr[-300:]


@pytest.mark.parametrize("factor", [2.0, 0.0, 1.0 + 1e-6])
def test_directions_that_are_not_unit_are_refused(tmp_path, factor):
    found = extraction(2)
    longer = dataclasses.replace(found.features[0], direction=factor * found.features[0].direction)
    folder = dataclasses.replace(found, features=(longer, *found.features[1:])).save(tmp_path / "out")
    with pytest.raises(rs.FileProblem, match="direction of feature 0 has length"):
        rs.load(folder)


def test_a_loaded_result_has_the_same_network(tmp_path):
    found = rs.extract(lambda X: np.tanh(X @ [[1.0, 0.5], [0.0, 2.0]]), dim=2, rng=0)
    again = rs.load(found.save(tmp_path))
    assert again.features[0].form.family == "tanh"
    assert same(again.network(), found.network())


def test_results_without_closed_forms_still_load():
    old = rs.load(Path(__file__).parent / "saved" / "format_1")
    assert old.features
    assert all(f.form is None for f in old.features)
    assert old.data_check is None


def test_a_closed_form_that_does_not_fit_is_refused(tmp_path):
    form = rs.ClosedForm("tanh", 1.0, 0.0, np.zeros(3), np.zeros(3), np.zeros(3))
    found = extraction(2)
    folder = dataclasses.replace(
        found, features=(dataclasses.replace(found.features[0], form=form), *found.features[1:])
    ).save(tmp_path)
    refused(folder, "closed form of feature 0")
