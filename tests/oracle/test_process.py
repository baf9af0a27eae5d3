"""A program that is asked over its standard input and output, in both forms, and when it misbehaves."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import ridgescope as rs

LINES = """
import json, sys
for line in sys.stdin:
    x = json.loads(line)
    print(json.dumps({answer}), flush=True)
"""
BINARY = """
import array, struct, sys
come, go = sys.stdin.buffer, sys.stdout.buffer
while header := come.read(8):
    m, d = struct.unpack("<II", header)
    x = array.array("d", come.read(8 * m * d))
    sums = [sum(x[d * i : d * i + d]) for i in range(m)]
    go.write(struct.pack("<II", m, {p}) + array.array("d", [s for s in sums for _ in range({p})]).tobytes())
    go.flush()
"""


def rows(count=30, dim=3, seed=0):
    return np.random.default_rng(seed).standard_normal((count, dim))


def exact(X):
    return np.array([sum(x.tolist()) for x in X])


@pytest.fixture
def program(tmp_path):
    def write(source, **options):
        path = tmp_path / f"program{len(list(tmp_path.iterdir()))}.py"
        path.write_text(source)
        return rs.oracle.process([sys.executable, "-u", str(path)], dim=3, **options)

    return write


def test_lines_come_back_with_every_digit(program):
    ask = program(LINES.format(answer="sum(x)"))
    np.testing.assert_array_equal(ask(rows())[:, 0], exact(rows()))
    assert ask.scalar
    pairs = program(LINES.format(answer="[sum(x), x[0]]"))
    np.testing.assert_array_equal(pairs(rows()), np.stack([exact(rows()), rows()[:, 0]], axis=1))


@pytest.mark.parametrize("p", [1, 3])
def test_the_binary_form_too(program, p):
    ask = program(BINARY.format(p=p), form="binary")
    np.testing.assert_array_equal(ask(rows()), np.tile(exact(rows())[:, None], (1, p)))
    assert ask.scalar is (p == 1)


def test_more_than_the_pipes_hold_goes_through(program):
    X = rows(20_000)
    assert program(LINES.format(answer="x"))(X).shape == X.shape


def test_one_program_serves_all_batches(program):
    ask = program(LINES.format(answer="__import__('os').getpid()"), batch=5)
    assert len(np.unique(np.concatenate([ask(rows()), ask(rows())]))) == 1


def test_threads_have_programs_of_their_own(program):
    with ThreadPoolExecutor(2) as executor:
        ask = program(LINES.format(answer="sum(x)"), batch=5, executor=executor)
        np.testing.assert_array_equal(ask(rows())[:, 0], exact(rows()))


def test_it_is_restarted_when_it_dies(program, tmp_path):
    mark = tmp_path / "mark"
    ask = program(
        "import os, sys\n"
        f"first = not os.path.exists({str(mark)!r})\n"
        f"open({str(mark)!r}, 'w').close()\n"
        + LINES.format(answer="sum(x)")
        + "    if first and x[0] > 0: os._exit(7)\n"
    )
    np.testing.assert_array_equal(ask(rows())[:, 0], exact(rows()))


def test_one_that_dies_between_batches_is_restarted(program):
    ask = program(LINES.format(answer="sum(x)") + "    sys.exit()\n")
    for x in rows(3):
        assert ask([x])[0, 0] == exact([x])[0]
        (child,) = ask.function._unused
        child.running.wait()


def test_one_that_keeps_dying_is_given_up_with_what_it_said(program, tmp_path):
    log = tmp_path / "starts"
    ask = program(f"open({str(log)!r}, 'a').write('x')\nimport sys\nsys.exit('no licence found')", restarts=2)
    with pytest.raises(rs.OracleFailed, match=r"ended with exit code 1 after 0 of 1 answers .* no licence found"):
        ask([[0.0, 0.0, 0.0]])
    assert log.read_text() == "xxx"


def test_one_that_has_ended_before_it_is_asked_is_reported_alike(program, monkeypatch):
    """On a busy machine a program may be gone when its rows are sent; no user could tell."""
    child_class = sys.modules["ridgescope.oracle.process"]._Child
    ask_then = child_class.ask

    def late(child, *args):
        child.running.wait()
        return ask_then(child, *args)

    monkeypatch.setattr(child_class, "ask", late)
    ask = program("import sys\nsys.exit('no licence found')", restarts=1)
    with pytest.raises(rs.OracleFailed, match=r"after 0 of 1 answers .* no licence found"):
        ask([[0.0, 0.0, 0.0]])


def test_one_that_says_nothing_is_ended(program):
    ask = program("import sys\nfor line in sys.stdin: pass", timeout=0.5)
    with pytest.raises(rs.OracleFailed, match=r"did not answer within timeout=0\.5 s and was killed .*flush"):
        ask(rows())


def alive(mark):
    """Return the processes, zombies apart, that have `mark` in their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and mark.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def all_gone(mark, seconds=5.0):
    end = time.monotonic() + seconds
    while alive(mark) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(mark)


needs_proc = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")


@needs_proc
def test_what_the_program_started_ends_with_it():
    """The shell waits for the sleeper, which holds the shell's output open."""
    ask = rs.oracle.process(["sh", "-c", "sleep 61.01; true"], dim=3, timeout=0.5)
    begun = time.monotonic()
    with pytest.raises(rs.OracleFailed, match=r"did not answer within timeout=0\.5 s and was killed"):
        ask(rows())
    assert time.monotonic() - begun < 5.0
    assert all_gone("61.01")


@needs_proc
def test_one_that_left_its_group_does_not_keep_us_waiting():
    ask = rs.oracle.process(["sh", "-c", "setsid sleep 9.02 2>/dev/null; true"], dim=3, timeout=0.5)
    begun = time.monotonic()
    with pytest.raises(rs.OracleFailed, match="was killed"):
        ask(rows())
    assert time.monotonic() - begun < 5.0


ORPHAN = """
import sys
import numpy as np
import ridgescope as rs

ask = rs.oracle.process(["sh", "-c", "read x; echo 1; read x; sleep 61.03; true"], dim=1, timeout=60)
ask(np.zeros((1, 1)))
print("asked", flush=True)
ask(np.zeros((1, 1)))
"""


@needs_proc
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_the_program_and_what_it_started_end_with_the_parent(sent):
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE) as parent:
        parent.stdout.readline()
        while not alive("sleep\0" + "61.03"):
            time.sleep(0.02)
        parent.send_signal(sent)
        parent.wait()
    assert all_gone("61.03")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("'warm'", "'warm'.* is not an array of numbers"),
        ("[1] * len(str(abs(x[0])))", "is not an array of numbers"),
        ("{'y': 1}", "is not an array of numbers"),
        ("None", r"answered nan at input row"),
        ("float('inf')", "answered inf at input row"),
    ],
)
def test_answers_that_are_no_numbers_are_shown(program, answer, message):
    with pytest.raises(rs.BadAnswer, match=message):
        program(LINES.format(answer=answer))([[0.5, 0.0, 0.0], [0.123, 0.0, 0.0]])


def test_chatter_among_the_answers_is_noticed(program):
    either = "the answer is not JSON|wrote more than one line per row"  # it may come before the first question
    with pytest.raises(rs.BadAnswer, match=rf"({either}).*ready.*Its standard error: \(nothing\)"):
        program("print('ready', flush=True)" + LINES.format(answer="sum(x)"))(rows())
    twice = program(LINES.format(answer="sum(x)") + "    sys.stdout.write('1\\n'); sys.stdout.flush()\n")

    def keep_asking():  # a line that comes late is noticed with the next question
        for _ in range(20):
            twice(rows(40))

    with pytest.raises(rs.BadAnswer, match="wrote more than one line per row"):
        keep_asking()


def test_a_binary_answer_of_another_length_is_refused(program):
    source = BINARY.format(p=1).replace('pack("<II", m', 'pack("<II", m + 1')
    with pytest.raises(rs.BadAnswer, match=r"says 31 rows of 1 numbers for 30 rows"):
        program(source, form="binary")(rows())
    with pytest.raises(rs.OracleFailed, match=r"after 4 of 8 bytes"):
        program("import sys\nsys.stdin.buffer.read(8)\nsys.stdout.write('half')", form="binary")(rows())


def test_options_and_programs_that_do_not_exist():
    with pytest.raises(rs.OracleFailed, match="'no-such-program-here -x' cannot be started"):
        rs.oracle.process("no-such-program-here -x", dim=2)([[0.0, 0.0]])
    with pytest.raises(rs.InvalidInput, match="the command is empty"):
        rs.oracle.process("", dim=2)
    with pytest.raises(rs.InvalidInput, match="No closing quotation"):
        rs.oracle.process("run 'this", dim=2)
    with pytest.raises(rs.InvalidInput, match='form must be "json" or "binary", not \'xml\''):
        rs.oracle.process("run", dim=2, form="xml")
    with pytest.raises(rs.InvalidInput, match="timeout must be positive"):
        rs.oracle.process("run", dim=2, timeout=0)


def test_it_survives_pickling_and_closing(program):
    ask = program(LINES.format(answer="sum(x)"))
    ask(rows())
    again = pickle.loads(pickle.dumps(ask))
    np.testing.assert_array_equal(again(rows()), ask(rows()))
    (child,) = ask.function._unused
    ask.function.close()
    assert child.running.poll() is not None
    np.testing.assert_array_equal(again(rows()), ask(rows()))


def test_a_program_is_extracted_end_to_end(program):
    ask = program("import math\n" + LINES.format(answer="math.tanh(2 * x[0] - x[1])"))
    found = rs.extract(ask, radius=2.0, rng=0, max_queries=60_000)
    assert found.certificate.met
    assert rs.match(found.directions, np.array([[2.0, -1.0, 0.0]])).share(1e-3) == 1.0
