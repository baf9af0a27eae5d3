"""Saved results, ledgers, arguments and answers from anywhere: a clear error or a correct reading, nothing else.

An audit hook watches that nothing is executed, unpickled, or opened for writing outside the folder at hand.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import sys
from contextlib import contextmanager, suppress
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays, scalar_dtypes
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as pack_arrays

import ridgescope as rs
from made import extraction
from ridgescope.oracle import Oracle
from ridgescope.oracle.ledger import Ledger
from ridgescope.oracle.segments import CHECKSUM, Damaged, Fingerprint, FingerprintMismatch, block_locations, seal
from ridgescope.report import geometry, page, queries, responses, star

CASES = [pytest.param(250, id="some"), pytest.param(10_000, id="many", marks=pytest.mark.heavy)]
HANGS = 60_000
"""Milliseconds after which a case counts as hanging, on the slowest of machines."""


def fuzz(cases, *strategies):
    """Run a function on so many cases."""

    def run(function):
        checks = list(HealthCheck)
        settings(max_examples=cases, deadline=HANGS, suppress_health_check=checks)(given(*strategies)(function))()

    return run


# -- what must not happen ------------------------------------------------------------------------------------

_FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "pickle.find_class", "exec")
_watched: list[Path] = []
_seen: list[str] = []


def _hook(event, arguments):
    if not _watched:
        return
    if event in _FORBIDDEN and not _of_a_library(arguments):
        _seen.append(f"{event} {arguments!r}")
    if (
        event == "open"
        and isinstance(arguments[0], str)
        and arguments[1] is not None
        and set(arguments[1]) & set("wax+")
    ):
        inside = Path(os.path.realpath(arguments[0])).is_relative_to(os.path.realpath(_watched[0]))
        if not inside and ".hypothesis" not in arguments[0] and "__pycache__" not in arguments[0]:
            _seen.append(f"wrote {arguments[0]!r}")


def _of_a_library(arguments):
    """Modules run code when they are first imported, and namedtuples when they are made."""
    name = getattr(arguments[0], "co_filename", "") if arguments else ""
    return name.endswith(".py") or name.startswith(("<frozen", "<string>", "<__array_function__", "<attrs"))


sys.addaudithook(_hook)


@contextmanager
def watched(folder):
    _watched.append(Path(folder))
    try:
        yield
    finally:
        _watched.clear()
        found, _seen[:] = list(_seen), []
    assert not found


# -- values ---------------------------------------------------------------------------------------------------

_words = st.sampled_from(
    ["", "../../etc/passwd", "/etc/passwd", "__import__('os')", "nan", "\0", "<b>", "é" * 50, "f8", "O"]
)
_numbers = st.one_of(
    st.integers(-3, 3), st.integers(), st.floats(), st.just(10**400), st.just(2**63), st.just(1e308), st.booleans()
)
_leaf = st.one_of(st.none(), _numbers, _words, st.text(max_size=9))
_json = st.recursive(
    _leaf,
    lambda x: st.lists(x, max_size=3) | st.dictionaries(_words | st.text(max_size=5), x, max_size=3),
    max_leaves=6,
)
_junk = st.one_of(_leaf, _json, st.binary(max_size=9), st.just(object()), st.just(lambda X: X), st.complex_numbers())
_odd = st.one_of(
    arrays(scalar_dtypes(), array_shapes(max_dims=3, max_side=4)),
    arrays(np.float64, array_shapes(max_dims=3, max_side=4), elements=st.floats()),
)


def paths_of(value, here=()):
    """Every place in a JSON value."""
    yield here
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        yield from paths_of(part, (*here, name))


def put_at(value, path, new):
    for name in path[:-1]:
        value = value[name]
    if new is ...:
        del value[path[-1]]
    else:
        value[path[-1]] = new


@st.composite
def bitten(draw, content):
    """Bytes, some of them changed, cut or added."""
    content = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        match draw(st.integers(0, 3)):
            case 0 if content:
                content[at] ^= draw(st.integers(1, 255))
            case 1:
                del content[at:]
            case 2:
                content[at:at] = draw(st.binary(max_size=40))
            case _:
                content[at : at + 64] = bytes(64)
    return bytes(content)


# -- saved results --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    extraction(2, queries=77).save(folder)
    return {name: (folder / name).read_bytes() for name in ("result.json", "arrays.safetensors")}


def read(folder, text, packed):
    """Load a result from these bytes; where it loads, everything a reader would do with it works."""
    (folder / "result.json").write_bytes(text)
    (folder / "arrays.safetensors").write_bytes(packed)
    with watched(folder), np.errstate(all="ignore"):
        try:
            found = rs.load(folder)
        except rs.FileProblem:
            return None
        assert all((found.summary(), repr(found), found._repr_html_()))
        assert found.predict(np.zeros((2, found.dim)), outside="extrapolate").shape == (2, *found.bias.shape)
        assert found.directions.shape == (len(found.features), found.dim)
        found.save(folder / "again")
    return found


@pytest.mark.parametrize("cases", CASES)
def test_bitten_results(result, tmp_path, cases):
    @fuzz(cases, st.data())
    def run(data):
        files = dict(result)
        name = data.draw(st.sampled_from(sorted(files)))
        files[name] = data.draw(bitten(files[name]))
        read(tmp_path, files["result.json"], files["arrays.safetensors"])


@pytest.mark.parametrize("cases", CASES)
def test_results_with_other_words_in_them(result, tmp_path, cases):
    text = json.loads(result["result.json"])
    places = [path for path in paths_of(text) if path]

    @fuzz(cases, st.lists(st.tuples(st.sampled_from(places), _json | st.just(...)), min_size=1, max_size=3))
    def run(changes):
        changed = json.loads(result["result.json"])
        for path, new in changes:
            try:
                put_at(changed, path, new)
            except (KeyError, IndexError, TypeError):
                continue
        read(tmp_path, json.dumps(changed).encode(), result["arrays.safetensors"])


@pytest.mark.parametrize("cases", CASES)
def test_results_with_other_arrays_in_them(result, tmp_path, cases):
    names = sorted(load_arrays(result["arrays.safetensors"]))

    @fuzz(cases, st.dictionaries(st.sampled_from(names), st.none() | _odd, min_size=1, max_size=3))
    def run(changes):
        held = load_arrays(result["arrays.safetensors"])
        for name, array in changes.items():
            if array is None:
                del held[name]
            else:
                held[name] = np.ascontiguousarray(array)
        try:
            packed = pack_arrays(held)
        except Exception:  # a type that such a file cannot hold
            return
        text = json.loads(result["result.json"]) | {"arrays_sha256": hashlib.sha256(packed).hexdigest()}
        read(tmp_path, json.dumps(text).encode(), packed)


# -- the report -----------------------------------------------------------------------------------------------

_MARKUP = (
    "<zz9 onzz9=zz9()>",
    "</script><zz9>",
    "<script>zz9</script>",
    "</title></style><zz9>",
    "<!--<script>zz9",
    "'><zz9 x='",
    '"><zz9 x="',
    "' onzz9='zz9",
    '" onzz9="zz9',
    "]]><zz9/>",
    "javascript:zz9",
    "&lt;zz9&gt;",
    "\\u003czz9>",
    "%{x}<zz9>{{",
    "<a href='javascript:zz9'>",
    "\u2028<zz9>\0",
)
_hostile_words = st.one_of(
    st.sampled_from(_MARKUP),
    st.lists(st.sampled_from(_MARKUP) | st.text(max_size=6), min_size=1, max_size=4).map("".join),
)


class _Page(HTMLParser):
    """What a browser would make elements of, and what it would hand to the script."""

    def __init__(self):
        super().__init__()
        self.code, self.data, self._kind = [], {}, None

    def handle_starttag(self, tag, attributes):
        named = {name: value or "" for name, value in attributes}
        assert "zz9" not in tag, tag
        for name, value in named.items():
            assert "zz9" not in name, name
            assert not name.startswith("on"), name
            assert name not in ("href", "src", "style") or "zz9" not in value, value
        if tag == "script":
            self._kind = named.get("id", "")
            assert (named.get("type") == "application/json") == bool(self._kind)

    def handle_endtag(self, tag):
        self._kind = None if tag == "script" else self._kind

    def handle_data(self, data):
        if self._kind == "":
            self.code.append(data)
        elif self._kind is not None:
            self.data[self._kind] = self.data.get(self._kind, "") + data

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data!r}")


def strings_of(value):
    return [x for path in paths_of(value) if isinstance(x := at(value, path), str)]


def at(value, path):
    for name in path:
        value = value[name]
    return value


def check_page(text, code):
    """Nothing that came from outside is an element, an attribute, a script, or markup for a figure."""
    read = _Page()
    read.feed(text)
    read.close()
    assert read.code == code, "the scripts are ours alone"
    for name, data in read.data.items():
        assert "<" not in data
        parsed = json.loads(data)
        if name.startswith("figure-"):
            assert not [x for x in strings_of(parsed) if "<zz9" in x or "<a " in x or "<script" in x]


@pytest.mark.parametrize(
    "cases", [pytest.param(60, id="some"), pytest.param(10_000, id="many", marks=pytest.mark.heavy)]
)
def test_reports_of_hostile_results(tmp_path, monkeypatch, cases):
    monkeypatch.setitem(page.__globals__, "get_plotlyjs", lambda: "/* plotly */")
    for module in (geometry, queries, responses, star):  # margins and colours take most of the time
        monkeypatch.setattr(module, "apply_style", lambda figure, height, **look: figure.update_layout(height=height))
    whole = extraction(2, queries=77, command="run", version="1", diagnosis="none", seed="3")
    whole.save(tmp_path)
    held = load_arrays((tmp_path / "arrays.safetensors").read_bytes())
    text = json.loads((tmp_path / "result.json").read_bytes())
    plain = _Page()
    plain.feed(page(whole))
    places = [path for path in paths_of(text) if path]
    words = [path for path in places if isinstance(at(text, path), str) and path[0] not in ("format", "arrays_sha256")]
    numbers = [path for path in places if type(at(text, path)) in (int, float, bool)]
    reworded = st.lists(st.tuples(st.sampled_from(words), _hostile_words), min_size=1, max_size=6)
    counted = st.lists(st.tuples(st.sampled_from(numbers), _numbers), max_size=2)
    stages = st.dictionaries(_hostile_words, st.integers(0, 10**9), max_size=2)
    other = st.none() | st.sampled_from(sorted(held)).flatmap(
        lambda name: st.tuples(st.just(name), arrays(held[name].dtype, held[name].shape))
    )
    drawn = []

    @fuzz(cases, reworded, counted, stages, other)
    def run(reworded, counted, stages, other):
        changed = json.loads(json.dumps(text))
        changed["queries_by_stage"] |= stages
        for path, new in (*reworded, *counted):
            put_at(changed, path, new)
        packed = pack_arrays(held if other is None else {**held, other[0]: other[1]})
        changed["arrays_sha256"] = hashlib.sha256(packed).hexdigest()
        found = read(tmp_path, json.dumps(changed).encode(), packed)
        if found is not None:
            with np.errstate(all="ignore"):
                check_page(page(found), plain.code)
            drawn.append(found)

    assert len(drawn) > cases / 3, "most of these results can be read"


# -- ledgers --------------------------------------------------------------------------------------------------


def square(X):
    return X[:, 0] ** 2


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    """The files of a small ledger, and what it holds."""
    path = tmp_path_factory.mktemp("ledger") / "l"
    held = {}
    with Ledger(path, 2) as book:
        for i in range(3):
            X = np.random.default_rng(i).standard_normal((5, 2))
            held[key := book.key("value", X)] = square(X).tobytes()
            book.put(key, "value", X, square(X))
            book.commit()
    return {name: (path.parent / name).read_bytes() for name in ("l", "l-count")}, held


def opened(folder, files, held=None):
    """Open a ledger made of these files; what it then holds is what was put there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    with watched(folder), suppress(rs.LedgerProblem), Ledger(folder / "l", 2) as book:
        book.verify_function({"value": square}, lambda X: np.ones(len(X), bool))
        for key in list(book._index):
            answer = book.get(key)
            assert held is None or answer.tobytes() == held[key]
        if held is not None:
            assert len(book) in (0, len(held))


@pytest.mark.parametrize("cases", CASES)
def test_bitten_ledgers(ledger, tmp_path, cases):
    files, held = ledger

    @fuzz(cases, st.data())
    def run(data):
        changed = dict(files)
        name = data.draw(st.sampled_from(["l", "l", "l", "l-count", "l-wal"]))
        changed[name] = data.draw(bitten(files.get(name, files["l"])))
        opened(tmp_path / "x", changed, held)


@pytest.mark.parametrize("cases", CASES)
def test_ledgers_forged_with_the_right_checksums(ledger, tmp_path, cases):
    files, _ = ledger
    fingerprint = Fingerprint.of(2, None, "value", np.zeros((3, 2)), np.zeros(3))
    words = json.loads(fingerprint.pack())
    changed_words = st.fixed_dictionaries({}, optional=dict.fromkeys((*words, "other"), _json))
    body = st.binary(max_size=90) | st.tuples(st.binary(min_size=28, max_size=28), _words).map(
        lambda pair: pair[0][:20] + b"<f8\0\0\0\0\0" + pair[0][:1] + pair[0][8:20] + pair[1].encode()
    )

    @fuzz(cases, changed_words, st.lists(body, max_size=3), st.booleans())
    def run(changes, bodies, whole):
        first = json.dumps({**words, **({} if whole else changes)}).encode()
        name = bytes.fromhex(fingerprint.name)
        rows = [(0, seal([first], b"", 0)), *((i + 1, seal([b], name, i + 1)) for i, b in enumerate(bodies))]
        shutil.rmtree(tmp_path / "x", ignore_errors=True)
        (tmp_path / "x").mkdir()
        (tmp_path / "x" / "l").write_bytes(files["l"])
        database = sqlite3.connect(tmp_path / "x" / "l")
        database.execute("DELETE FROM segment")
        database.executemany("INSERT INTO segment VALUES (?, ?)", rows)
        database.commit()
        database.close()
        opened(tmp_path / "x" / "y", {"l": (tmp_path / "x" / "l").read_bytes()})


@pytest.mark.parametrize("cases", CASES)
def test_any_bytes_are_a_segment_or_damaged(cases):
    @fuzz(cases, st.binary(max_size=300))
    def run(content):
        with suppress(Damaged):
            for _, block in block_locations(content + bytes(CHECKSUM)):
                block.read(content)
        with suppress(Damaged, FingerprintMismatch):
            Fingerprint.unpack(content)


# -- arguments ------------------------------------------------------------------------------------------------


class Reached(BaseException):
    """Every argument was accepted, and the first question is about to be asked."""


def first_question(X):
    raise Reached


_arguments = st.fixed_dictionaries(
    {},
    optional={
        name: _junk | good
        for name, good in {
            "dim": st.integers(1, 4),
            "radius": st.floats(0.1, 9),
            "center": st.lists(st.floats(-1, 1), min_size=2, max_size=2) | _odd,
            "reach": st.floats(9, 99),
            "tolerance": st.floats(1e-3, 1),
            "noise": st.floats(0, 1),
            "confidence": st.floats(0.5, 0.99),
            "max_features": st.integers(0, 9),
            "max_queries": st.integers(0, 9),
            "method": st.sampled_from(["auto", "slices", ("kinks", "random"), "paper"]),
            "rng": st.integers(0, 9),
            "progress": st.booleans(),
        }.items()
    },
)


@pytest.mark.parametrize("cases", CASES)
def test_arguments_of_extract(tmp_path, monkeypatch, cases):
    monkeypatch.chdir(tmp_path)

    @fuzz(cases, _arguments)
    def run(arguments):
        with watched(tmp_path), suppress(rs.InvalidInput, rs.BudgetExhausted, Reached):
            rs.extract(first_question, **{"dim": 2, **arguments})


@pytest.mark.parametrize("cases", CASES)
def test_names_of_ledgers(tmp_path, monkeypatch, cases):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    names = (
        st.text(max_size=12) | _words | st.sampled_from(["file:x?mode=memory", ":memory:", "a" * 300, ".", "x?y", "%"])
    )

    @fuzz(cases, _junk | names.filter(lambda name: not name.startswith(("/", ".."))))
    def run(name):
        if isinstance(name, str) and name.startswith(("/", "..")):
            return
        with watched(tmp_path), suppress(rs.RidgescopeError):
            Ledger(name, 2).close()


# -- answers --------------------------------------------------------------------------------------------------


class Rude:
    """An object whose every conversion fails."""

    def __array__(self, *arguments, **options):
        raise RuntimeError("no array")

    def __len__(self):
        raise OSError("no length")

    def __repr__(self):
        raise ValueError("no text")


_answers = st.one_of(
    _junk,
    _odd,
    st.lists(_leaf, min_size=3, max_size=3),
    st.lists(st.lists(_leaf, min_size=1, max_size=2), min_size=3, max_size=3),
    arrays(np.float64, st.sampled_from([(3,), (3, 1), (3, 2), (2,), (3, 0), (0,)]), elements=st.floats()),
    st.builds(Rude),
    st.lists(st.builds(Rude), min_size=3, max_size=3),
)


@pytest.mark.parametrize("cases", CASES)
def test_answers_of_any_kind(tmp_path, cases):
    X = np.arange(6.0).reshape(3, 2)

    @fuzz(cases, _answers, st.sampled_from(["raise", "drop"]), st.sampled_from(["raw", "log_odds"]), st.booleans())
    def run(answer, on_bad, output, gradient):
        options = {} if gradient else {"output": output}
        ask = Oracle(
            lambda X: answer, dim=2, on_bad=on_bad, gradient=(lambda X: answer) if gradient else None, **options
        )
        with watched(tmp_path):
            try:
                values = ask.gradient(X) if gradient else ask(X)
            except (rs.BadAnswer, rs.OracleFailed):
                return
        assert values.dtype == np.float64
        assert values.shape[0] == 3
        assert np.isfinite(values).all() or on_bad == "drop"
