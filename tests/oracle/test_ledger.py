"""The ledger: what was answered stays answered, whatever happens to the process or the file."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import ridgescope as rs
from ridgescope.oracle import Oracle, segments
from ridgescope.oracle import ledger as module
from ridgescope.oracle.ledger import Ledger
from ridgescope.oracle.segments import digest


def wave(X):
    return np.sin(X.sum(axis=1))


class Counted:
    """Counts the rows it is asked, and remembers them."""

    def __init__(self, function=wave):
        self.function, self.rows, self.seen = function, 0, []

    def __call__(self, X):
        self.rows += len(X)
        self.seen.append(X.copy())
        return self.function(X)


def points(count, dim=3, seed=0):
    return np.random.default_rng(seed).standard_normal((count, dim))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.ledger"


def filled(path, blocks=5, rows=40):
    """A ledger with some blocks; what it holds."""
    held = {}
    with Ledger(path, 3) as ledger:
        for i in range(blocks):
            X = points(rows, seed=i)
            key = ledger.key("value", X)
            ledger.put(key, "value", X, wave(X))
            ledger.commit()
            held[key] = wave(X)
    return held


def refused(path, *says, **arguments):
    with pytest.raises(rs.LedgerProblem) as caught:
        Ledger(path, 3, **arguments)
    assert all(part in str(caught.value) for part in (str(path), *says)), caught.value
    return str(caught.value)


# -- against a plain dict ------------------------------------------------------------------------------------


class AgainstADict(RuleBasedStateMachine):
    """Blocks put in any order, any type of answer, closed and cut off at any moment."""

    @initialize()
    def start(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "run.ledger"
        self.stored, self.waiting = {}, {}
        self.ledger = Ledger(self.path, 2)

    @rule(
        X=arrays(np.float64, st.tuples(st.integers(1, 3), st.just(2)), elements=st.sampled_from([0.0, -0.0, 1.0, 2.5])),
        dtype=st.sampled_from(["f8", "f4", ">f8", "f2", "i8", "u1", "?"]),
        outputs=st.sampled_from([(), (1,), (4,), (2, 2)]),
        kind=st.sampled_from(["value", "gradient"]),
        seed=st.integers(0, 99),
    )
    def ask(self, X, dtype, outputs, kind, seed):
        key = self.ledger.key(kind, X)
        known = {**self.stored, **self.waiting}
        answer = self.ledger.get(key)
        assert (answer is not None) == (key in known) == (key in self.ledger)
        if answer is None:
            answer = np.random.default_rng(seed).integers(0, 2, (len(X), *outputs)).astype(dtype)
            self.ledger.put(key, kind, X, answer)
            self.waiting[key] = answer
        expected = {**self.stored, **self.waiting}[key]
        assert answer.dtype == expected.dtype
        assert answer.shape == expected.shape
        assert answer.tobytes() == expected.tobytes()

    @rule()
    def commit(self):
        self.ledger.commit()
        self.stored |= self.waiting
        self.waiting = {}

    @rule()
    def close_and_open(self):
        self.ledger.close()
        self.stored |= self.waiting
        self.waiting = {}
        self.ledger = Ledger(self.path, 2)

    @rule()
    def cut_off(self):
        """What a copy taken at this moment holds is what a killed process would have left."""
        other = Path(self.folder.name) / "copy"
        shutil.rmtree(other, ignore_errors=True)
        other.mkdir()
        for file in Path(self.folder.name).glob("run.ledger*"):
            shutil.copy(file, other / file.name)
        with Ledger(other / "run.ledger", 2) as copy:
            assert copy._index.keys() == self.stored.keys()
            assert all(copy.get(key).tobytes() == answer.tobytes() for key, answer in self.stored.items())

    @precondition(lambda self: self.ledger.fingerprint is not None)
    @rule()
    def second_comer(self):
        with pytest.raises(rs.LedgerProblem, match="in use by another run"):
            Ledger(self.path, 2)

    @invariant()
    def counts(self):
        if hasattr(self, "ledger"):
            assert len(self.ledger) == len(self.stored) + len(self.waiting)

    def teardown(self):
        if hasattr(self, "ledger"):
            self.ledger.close()
            self.folder.cleanup()


TestAgainstADict = AgainstADict.TestCase
TestAgainstADict.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)


# -- an oracle that remembers --------------------------------------------------------------------------------


def test_nothing_is_asked_twice_and_the_bits_are_the_same(path):
    X, first, second = points(3000), Counted(), Counted()
    ask = Oracle(first, dim=3)
    with ask.recording(path):
        expected = ask(X)
    again = Oracle(second, dim=3)
    with again.recording(path):
        assert again(X).tobytes() == expected.tobytes()
    assert first.rows == ask.asked == 3000
    assert second.rows == again.asked == 12 + 32, "six rows twice, and two rows each of sixteen blocks"
    assert again.queries == ask.queries == 3000
    for name in ("outputs", "scalar", "rounding", "largest", "dropped"):
        assert getattr(again, name) == getattr(ask, name)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4", "u1", "?"])
def test_the_type_of_an_answer_comes_back(path, dtype):
    def f(X):
        return (np.abs(X[:, :2]) * 3).astype(dtype)

    asks = [Oracle(f, dim=3) for _ in range(2)]
    answers = []
    for ask in asks:
        with ask.recording(path):
            answers.append(ask(points(100)))
    assert answers[0].tobytes() == answers[1].tobytes()
    assert asks[0].rounding == asks[1].rounding


def test_asking_again_is_another_question(path):
    def noisy(rng):
        return Counted(lambda X: wave(X) + 1e-3 * rng.standard_normal(len(X)))

    X = points(5)
    ask = Oracle(noisy(np.random.default_rng(1)), dim=3)
    with ask.recording(path):
        answers_seen = [ask(X).tobytes() for _ in range(4)]
    assert len(set(answers_seen)) == 4
    other = noisy(np.random.default_rng(2))
    again = Oracle(other, dim=3)
    with again.recording(path):
        assert [again(X).tobytes() for _ in range(4)] == answers_seen
        assert 18 <= other.rows <= 10 + 4 * 18, "five rows twice; two of each block, nine times where noise shows"
        assert again(X).tobytes() not in answers_seen


def test_values_and_gradients_are_different_questions(path):
    ask = Oracle(wave, dim=3, gradient=lambda X: np.cos(X.sum(axis=1))[:, None] * np.ones((1, 3)))
    silent = Oracle(wave, dim=3, gradient=lambda X: 1 / 0)
    with ask.recording(path):
        expected = ask(points(50)), ask.gradient(points(50))
    with silent.recording(path):
        answers_seen = silent(points(50)), silent.gradient(points(50))
    assert all(np.array_equal(a, b) for a, b in zip(answers_seen, expected, strict=True))


def test_dropped_answers_are_kept_and_refused_ones_are_not(path):
    def holes(X):
        return np.where(X[:, 0] > 0, np.nan, X[:, 0])

    with pytest.raises(rs.BadAnswer), (ask := Oracle(holes, dim=3)).recording(path):
        ask(points(100))
    with Ledger(path, 3) as ledger:
        assert len(ledger) == 0
    answers_seen = []
    for _ in range(2):
        ask = Oracle(counted := Counted(holes), dim=3, on_bad="drop")
        with ask.recording(path):
            answers_seen.append((ask(points(100)).tobytes(), ask.dropped))
    assert answers_seen[0] == answers_seen[1]
    assert counted.rows == 12 + 4


def test_what_came_before_an_error_is_kept(path):
    def f(X):
        if X[0, 0] >= 4:
            raise KeyboardInterrupt
        return X[:, 0]

    X = np.arange(8.0)[:, None]
    ask = Oracle(f, dim=1, batch=1)
    with pytest.raises(KeyboardInterrupt), ask.recording(path):
        ask(X)
    with Ledger(path, 1, 1) as ledger:
        assert len(ledger) == 4


def test_a_long_question_is_stored_while_it_is_answered(path, monkeypatch):
    monkeypatch.setattr("ridgescope.oracle.batching._COMMIT_SECONDS", -1.0)
    stored = []
    ask = Oracle(lambda X: (stored.append(len(ask.ledger._index)), wave(X))[1], dim=3, batch=10)
    with ask.recording(path):
        ask(points(50))
    assert stored == [0, 1, 2, 3, 4]


def test_a_million_answers_take_about_ten_megabytes(path):
    X = np.random.default_rng(0).random((2**15, 2))
    with Ledger(path, 2) as ledger:
        for i in range(31):
            for rows in np.split(X + i, 16):
                ledger.put(ledger.key("value", rows), "value", rows, rows[:, 0])
            ledger.commit()
    assert sum(file.stat().st_size for file in path.parent.iterdir()) < 10e6 * (31 * 2**15 / 1e6)


# -- whose answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "dim", "says"),
    [
        (lambda X: np.cos(X.sum(axis=1)), 3, "this one answers"),
        (lambda X: wave(X)[:, None], 3, "shape ()"),
        (lambda X: np.stack([wave(X)] * 2, axis=1), 3, "shape ()"),
        (wave, 4, "dim=3, this one dim=4"),
        (lambda X: np.full(len(X), np.nan), 3, "nan"),
    ],
)
def test_another_functions_ledger_is_refused(path, function, dim, says):
    ask = Oracle(wave, dim=3)
    with ask.recording(path):
        expected = ask(points(50))
    with (
        pytest.raises(rs.LedgerProblem, match="answers of another function") as caught,
        Oracle(function, dim=dim, on_bad="drop").recording(path),
    ):
        pass
    assert says in str(caught.value)
    with (again := Oracle(wave, dim=3)).recording(path):
        assert np.array_equal(again(points(50)), expected), "a refusal leaves the ledger as it was"


@pytest.mark.parametrize("share", [0.5, 0.2])
def test_a_function_that_differs_in_part_of_the_space_is_noticed(path, share):
    """The fingerprint lies where they agree. Thirty-two rows overlook the half with probability 2⁻³²."""
    U = np.random.default_rng(0).uniform(size=(4000, 3))
    U[:256, 0] *= 0.01  # the block that the fingerprint is taken from

    def other(X):
        return wave(X) + 0.01 * (X[:, 0] > 1.0 - share)

    with (ask := Oracle(wave, dim=3)).recording(path):
        ask(U)
    problems = []
    for _ in range(8):
        try:
            with (again := Oracle(other, dim=3)).recording(path):
                again(U)
        except rs.LedgerProblem as problem:
            problems.append(str(problem))
    noticed = sum("in places only" in problem for problem in problems)
    # at least half of 32 rows lie in blocks after the first 256 rows: 0.8¹⁶ = 0.03 for one run to overlook a fifth
    assert noticed == 8 if share == 0.5 else noticed >= 6
    with (same := Oracle(wave, dim=3)).recording(path):
        np.testing.assert_array_equal(same(U)[:, 0], wave(U))


@pytest.mark.parametrize("level", [1e-6, 1e-3, 1.0])
def test_noise_does_not_make_it_another_function(path, level):
    """Not even where it grows with x, so that the fingerprint's rows have less of it than others."""
    X = points(3000)
    X[:256] *= 0.01
    rng = np.random.default_rng(5)

    def noisy(X):
        return wave(X) + level * np.abs(X[:, 0]) * rng.standard_normal(len(X))

    with (ask := Oracle(noisy, dim=3)).recording(path):
        expected = ask(X)
    for _ in range(20):
        with (again := Oracle(noisy, dim=3)).recording(path):
            assert np.array_equal(again(X), expected)


def test_rounding_does_not_make_it_another_function(path):
    with (ask := Oracle(wave, dim=3)).recording(path):
        ask(points(50))
    with Oracle(lambda X: wave(X) * (1 + 1e-14), dim=3).recording(path):
        pass


def test_another_batch_is_refused(path):
    with (ask := Oracle(wave, dim=3, batch=7)).recording(path):
        ask(points(50))
    with (
        pytest.raises(rs.LedgerProblem, match="written with batch=7 and this run has batch=None"),
        Oracle(wave, dim=3).recording(path),
    ):
        pass


def test_the_function_is_not_asked_beyond_reach_to_be_known(path):
    with (ask := Oracle(wave, dim=3)).recording(path):
        ask(points(50) * 10)
    spy = Counted()
    with (
        pytest.raises(rs.LedgerProblem, match="within this run's reach"),
        Oracle(spy, dim=3, reach=0.1).recording(path),
    ):
        pass
    assert spy.rows == 0


# -- files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["", "a\0b", 7, ["x"], b"run.ledger", "nowhere/run.ledger", "."])
def test_a_ledger_is_the_name_of_a_file(bad, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(rs.InvalidInput, match="ledger"):
        Ledger(bad, 3)


@pytest.mark.parametrize("name", [":memory:", "file:x?mode=memory", "ü ä.ledger"])
def test_a_name_is_a_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    filled(name)
    assert (tmp_path / name).stat().st_size > 0
    with Ledger(tmp_path / name, 3) as ledger:
        assert len(ledger) == 5


def test_other_files_are_left_alone(path):
    path.write_bytes(b"my thesis " * 1000)
    refused(path, "is not a ledger", "another name")
    assert path.read_bytes() == b"my thesis " * 1000
    path.unlink()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE segment (a)")
    other.close()
    refused(path, "is an SQLite file, but not a ledger")


def test_a_file_from_the_future_says_so(path, monkeypatch):
    monkeypatch.setattr(segments, "FORMAT", 2)
    filled(path)
    monkeypatch.undo()
    refused(path, "ledger format 2, and this ridgescope reads 1")


@pytest.mark.parametrize("size", [0, 1, 100, 4096, 5000, 0.5, 0.9])
def test_a_truncated_file_is_noticed(path, size):
    filled(path, blocks=30, rows=300)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(size * len(whole)) if isinstance(size, float) else size])
    refused(path)


def test_every_flipped_byte_of_an_answer_is_noticed(path):
    filled(path, blocks=2, rows=8)
    whole = path.read_bytes()
    place = whole.find(wave(points(8, seed=1)).tobytes())
    assert place > 0
    for at in range(place, place + 64):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        refused(path, "is damaged", "part 2", "checksum", "Restore it from a copy")
    path.write_bytes(whole)
    with Ledger(path, 3) as ledger:
        assert len(ledger) == 2


def tampered(path, *commands):
    database = sqlite3.connect(path)
    for command in commands:
        database.execute(command)
    database.commit()
    database.close()


def test_a_ledger_after_a_checkpoint_is_whole_and_takes_more(path):
    X = np.arange(6.0).reshape(3, 2)
    with Ledger(path, 2) as ledger:
        ledger.put(ledger.key("value", X), "value", X, X[:, 0])
        ledger.checkpoint()
        ledger.checkpoint()
        ledger.put(ledger.key("value", X + 1), "value", X + 1, X[:, 1])
    assert not path.with_name(path.name + "-wal").exists()
    with Ledger(path, 2) as again:
        assert np.array_equal(again.get(again.key("value", X)), X[:, 0])
        assert np.array_equal(again.get(again.key("value", X + 1)), X[:, 1])


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("DELETE FROM segment WHERE number = 2", "part 2 is missing"),
        ("DELETE FROM segment WHERE number = 0", "part 0 is missing"),
        ("DELETE FROM segment WHERE number = 5", "6 parts were stored and only 5 are left"),
        ("DELETE FROM segment", "6 parts were stored and only 0 are left"),
        ("UPDATE segment SET body = (SELECT body FROM segment WHERE number = 1) WHERE number = 2", "part 2"),
        ("UPDATE segment SET body = 'text' WHERE number = 3", "part 3 is too short"),
        ("UPDATE segment SET body = zeroblob(99) WHERE number = 0", "part 0"),
        ("UPDATE segment SET number = 9 WHERE number = 5", "part 5 is missing"),
    ],
)
def test_parts_that_are_gone_or_moved_are_noticed(path, command, says):
    filled(path)
    tampered(path, command)
    refused(path, "is damaged", says)


def test_a_log_that_lost_its_end_is_noticed(path, tmp_path):
    """SQLite itself takes a shorter log for a log that was never longer."""
    left = tmp_path / "left"
    left.mkdir()
    with Ledger(path, 3) as ledger:
        for i in range(5):
            X = points(400, seed=i)
            ledger.put(ledger.key("value", X), "value", X, wave(X))
            ledger.commit()
        for file in tmp_path.glob("run.ledger*"):
            shutil.copy(file, left / file.name)
    log = left / "run.ledger-wal"
    whole = log.read_bytes()
    for size in (0, len(whole) // 2, len(whole) - 1):
        log.write_bytes(whole[:size])
        kept = {file.name: file.read_bytes() for file in left.iterdir()}
        with pytest.raises(rs.LedgerProblem, match="6 parts were stored and only"):
            Ledger(left / "run.ledger", 3)
        for name, content in kept.items():
            (left / name).write_bytes(content)
    log.write_bytes(whole)
    with Ledger(left / "run.ledger", 3) as ledger:
        assert len(ledger) == 5


def test_after_a_new_start_of_the_machine_only_confirmed_parts_count(path, monkeypatch):
    filled(path)
    tampered(path, "DELETE FROM segment WHERE number = 5")
    monkeypatch.setattr(module, "_boot_id", lambda: "another")
    with Ledger(path, 3) as ledger:
        assert len(ledger) == 4


def test_a_count_that_is_not_one(path, tmp_path):
    filled(path)
    count = tmp_path / "run.ledger-count"
    good = count.read_bytes()
    for bad in (b"", b"\xff" * 60, good[:20], good.replace(b"6", b"x", 1), good[:-5] + b"0000\n"):
        count.write_bytes(bad)
        refused(path, "run.ledger-count", "delete it to continue")
    count.unlink()
    with Ledger(path, 3) as ledger:
        assert len(ledger) == 5
    assert count.exists()


def test_a_damaged_part_met_later_is_noticed(path):
    held = filled(path)
    with Ledger(path, 3) as ledger:
        ledger._database.execute("UPDATE segment SET body = zeroblob(500) WHERE number = 3")
        with pytest.raises(rs.LedgerProblem, match="part 3 does not have the checksum"):
            [ledger.get(key) for key in held]


# -- one at a time -------------------------------------------------------------------------------------------

HOLD = """
import sys, time
from ridgescope.oracle.ledger import Ledger
ledger = Ledger(sys.argv[1], 3)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_refused_and_a_killed_holder_leaves_nothing_locked(path):
    filled(path)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout.readline() == "held\n"
        refused(path, "is in use by another run", "a ledger of its own")
        holder.kill()
    with Ledger(path, 3) as ledger:
        assert len(ledger) == 5


# -- a full disk ---------------------------------------------------------------------------------------------


def until_full(ask, path):
    with ask.recording(path):
        ask(points(100))
        pages = ask.ledger._database.execute("PRAGMA page_count").fetchone()[0]
        ask.ledger._database.execute(f"PRAGMA max_page_count={pages + 20}")
        for i in range(1, 99):
            ask(points(1000, seed=i))


def test_a_full_disk_ends_with_a_sentence_and_keeps_what_was_stored(path):
    spy = Counted()
    ask = Oracle(spy, dim=3)
    with pytest.raises(rs.LedgerProblem, match=r"the disk is full\. \d+ answered blocks are stored"):
        until_full(ask, path)
    assert 1000 < spy.rows < 99_000
    again = Oracle(other := Counted(), dim=3)
    with again.recording(path):
        again(points(100))
        for i in range(1, 99):
            again(points(1000, seed=i))
    lost = spy.rows + other.rows - 12 - 32 - 98_100
    assert lost == 1000, "the one question that could not be stored, and no other, is asked again"


def test_digests_tell_questions_apart():
    X = points(6, 2)
    others = [X.reshape(3, 4), X[:5], -X, np.where(X[0, 0] == X, np.nextafter(X, 9), X), X[::-1]]
    assert len({digest("value", Y) for Y in [X, *others]} | {digest("gradient", X)}) == 7
    assert digest("value", np.zeros((1, 1))) != digest("value", -np.zeros((1, 1)))
    assert digest("value", np.asfortranarray(X)) == digest("value", X)


def test_the_bytes_of_a_segment_are_those_that_files_hold_already():
    """Files written by released versions must stay readable: these bytes may not change within format 1."""
    X = np.array([[1.0, -0.0], [2.5, 3.0]])
    mark = digest("value", X)
    entries, _ = segments.pack_blocks({(mark, 1): np.array([1.0, -2.0], dtype="<f4")})
    assert mark.hex() == "0000277909d7d61cca2469849661082a"
    assert segments.seal(entries, b"n" * 16, 7).hex() == (
        "0000277909d7d61cca2469849661082a"  # digest
        "010000003c663400000000000102000000"  # asked once before; <f4, one axis, two numbers
        "0000000000000000"
        "0000803f000000c0"  # 1.0, -2.0
        "24df35fafe4050272059b51c64d437e2"  # checksum
    )


class Disk:
    """A clock on which a wait for the disk takes its time, and nothing else does."""

    def __init__(self, monkeypatch, wait):
        self.now, self.wait, self.waits = 0.0, wait, 0
        execute = Ledger._set_synchronous

        def noted(ledger, mode):
            execute(ledger, mode)
            self.waits += mode == "FULL"
            self.now += self.wait if mode == "FULL" else 0.0

        monkeypatch.setattr(Ledger, "_set_synchronous", noted)
        monkeypatch.setattr(module.time, "perf_counter", lambda: self.now)


@pytest.mark.parametrize(("pause", "share"), [(1.0, 1.0), (0.01, 0.0), (0.0, 0.0)])
def test_the_disk_is_waited_for_as_long_as_that_is_a_small_part_of_the_run(path, monkeypatch, pause, share):
    """With answers that take their time, at every commit; never for more than a sixtieth of it all."""
    disk = Disk(monkeypatch, wait=0.005)
    with Ledger(path, 3) as ledger:
        for i in range(200):
            disk.now += pause
            X = points(2, seed=i)
            ledger.put(ledger.key("value", X), "value", X, wave(X))
            ledger.commit()
            assert ledger._sync_seconds <= disk.now / 60 + disk.wait
            assert (ledger._synced == ledger._segments) or share < 1.0
        lost = ledger._segments - ledger._synced
        assert disk.waits >= share * 200
    assert lost * pause <= 60 * 0.005 + pause, "what a loss of power takes was answered within sixty waits"
    with Ledger(path, 3) as ledger:
        assert len(ledger) == 200
