"""Threads, processes and Dask give the bits that one process gives; a lost worker's answers are not asked again."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event, Lock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ridgescope as rs
from ridgescope.oracle import Oracle, workers
from ridgescope.oracle.batching import batch_size, block_size, cuts
from ridgescope.oracle.ledger import Ledger
from test_storage import same
from travel import TARGET, Heavy, Noted, Posted, Tag


def processes(count):
    return ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))


def extracted(**options):
    return replace(rs.extract(TARGET, radius=2.0, rng=3, **options), asked=None)


# -- blocks --------------------------------------------------------------------------------------------------


@given(count=st.integers(1, 100_000), most=st.integers(1, 5000))
def test_blocks_are_even_and_enough_for_several_workers(count, most):
    size = block_size(count, most)
    sizes = [len(range(count)[c]) for c in cuts(count, size)]
    assert sum(sizes) == count
    assert max(sizes) <= most
    if 64 < count <= 16 * most:
        assert 2 <= len(sizes) <= 16
        assert max(sizes) >= min(33, most)


def test_a_slice_of_the_search_is_cut_for_many_workers():
    assert len(list(cuts(2**15, block_size(2**15, batch_size(10))))) == 16


# -- the same bits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pool", "count"), [(ThreadPoolExecutor, 1), (ThreadPoolExecutor, 3), (processes, 2)])
def test_a_run_has_the_same_bits_with_any_pool(pool, count):
    with pool(count) as executor:
        assert same(extracted(executor=executor), extracted())


@pytest.mark.parametrize("with_ledger", [False, True])
def test_a_search_by_slices_has_the_same_bits_with_workers_that_share_nothing(tmp_path, with_ledger):
    options = {"method": "slices", "max_queries": 6000}
    there = extracted(executor=Posted(), ledger=tmp_path / "l" if with_ledger else None, **options)
    assert same(there, extracted(**options))


@pytest.mark.heavy
def test_the_papers_route_has_the_same_bits_with_workers(tmp_path):
    target = rs.targets.planted(dim=2, features=2, kinds=("sine",), separation=0.5, rng=1)
    options = {"radius": 2.0, "method": "paper", "max_queries": 2_000_000, "rng": 1}
    right = replace(rs.extract(target, **options), asked=None)
    for executor in (ThreadPoolExecutor(2), processes(2)):
        with executor:
            assert same(replace(rs.extract(target, executor=executor, **options), asked=None), right)
    assert same(replace(rs.extract(target, ledger=tmp_path / "l", **options), asked=None), right)


def test_a_ledger_written_by_workers_serves_a_run_without(tmp_path):
    with ThreadPoolExecutor(2) as executor:
        first = rs.extract(TARGET, radius=2.0, rng=3, executor=executor, ledger=tmp_path / "l")
    again = rs.extract(TARGET, radius=2.0, rng=3, ledger=tmp_path / "l")
    assert first.asked == first.queries
    assert again.asked <= 12 + 32
    assert same(replace(again, asked=None), replace(first, asked=None))


# -- what is sent ---------------------------------------------------------------------------------------------


def test_a_large_function_goes_to_a_worker_about_once():
    X = np.random.default_rng(0).standard_normal((500, 3))
    function, post = Heavy(300_000), Posted()
    ask = Oracle(function, dim=3, executor=post, batch=20)
    assert np.array_equal(ask(X)[:, 0], function(X))
    assert np.array_equal(ask(X)[:, 0], function(X))
    assert sum(size > 300_000 for size in post.sent) <= 4
    assert all(size < 20_000 for size in post.sent[-4:])


def test_a_small_function_goes_along_and_cheap_blocks_go_together():
    post, blocks = Posted(), []
    X = np.random.default_rng(0).standard_normal((500, 3))
    ask = Oracle(Tag(1.0), dim=3, executor=post, batch=20)
    first = ask(X)
    assert len(post.sent) == 25, "what a row costs is not known yet"
    assert ask(X).tobytes() == first.tobytes()
    assert len(post.sent) == 29
    with ThreadPoolExecutor(2) as pool:
        spy = Oracle(lambda X: (blocks.append(len(X)), X[:, 0])[1], dim=3, executor=pool, batch=20)
        for _ in range(3):
            spy(X)
    assert blocks == [20] * 75, "the function sees the same blocks all the same"


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=40),
    cost=st.none() | st.floats(0, 10) | st.floats(0, 1e-3),
)
def test_tasks_hold_every_block_once_and_in_order(sizes, cost):
    blocks = [np.full((size, 1), i) for i, size in enumerate(sizes)]
    tasks = workers._tasks(blocks, cost)
    assert [rows[0, 0] for task in tasks for rows in task] == list(range(len(sizes)))
    assert all(tasks)


def test_what_a_task_answered_before_a_problem_is_kept(tmp_path):
    def fails_late(X):
        if fails_late.on and X[0, 0] >= 14:
            raise ValueError("no")
        return X[:, 0]

    with ThreadPoolExecutor(1) as pool:
        ask = Oracle(fails_late, dim=1, executor=pool, batch=1)
        with ask.recording(tmp_path / "l"):
            fails_late.on = False
            ask(np.zeros((4, 1)))
            fails_late.on = True
            with pytest.raises(rs.OracleFailed, match="raised ValueError: no"):
                ask(np.arange(16.0)[:, None])
            assert len(ask.ledger) == 4 + 14


def test_a_worker_remembers_a_few_functions_only():
    X = np.zeros((40, 1))
    for i in range(9):
        Oracle(Heavy(70_000, i), dim=1, executor=(post := Posted()), batch=20)(X)
        assert all(len(memory) <= 4 for memory in post.memories)


def test_equal_blocks_are_different_tasks():
    """Dask answers equal tasks once; a noisy function must be asked as often as it was meant to be."""
    seen = []

    class Spy(Posted):
        def submit(self, fn, /, *args, **kwargs):
            seen.append(pickle.dumps(args))
            return super().submit(fn, *args, **kwargs)

    Oracle(Tag(1.0), dim=1, executor=Spy(), batch=1)(np.zeros((30, 1)))
    assert len(set(seen)) == 30


# -- what goes wrong -----------------------------------------------------------------------------------------


def test_a_dead_pool_is_a_sentence():
    with (
        processes(2) as pool,
        pytest.raises(rs.OracleFailed, match=r"did not answer .*start the run again, with ledger="),
    ):
        Oracle(Tag(-1.0), dim=1, executor=pool, batch=10)(np.ones((50, 1)))


def test_a_pool_that_was_shut_down_is_a_sentence():
    with ThreadPoolExecutor(1) as executor:
        pass
    with pytest.raises(rs.OracleFailed, match="cannot schedule new futures after shutdown"):
        Oracle(Tag(1.0), dim=1, executor=executor, batch=10)(np.ones((50, 1)))


def test_a_function_that_cannot_travel_is_a_sentence():
    with processes(1) as executor, pytest.raises(rs.OracleFailed, match="at the top of a module"):
        Oracle(Lock().acquire, dim=1, executor=executor, batch=10)(np.ones((50, 1)))


def test_an_error_of_the_function_is_raised_from_any_pool():
    with processes(1) as executor, pytest.raises(rs.OracleFailed, match=r"raised ValueError: no .* 10 rows"):
        Oracle(Tag(0.0), dim=1, executor=executor, batch=10)(np.ones((50, 1)))


def test_the_rest_is_cancelled_after_an_error():
    asked, error_seen = [], Event()

    def f(X):
        asked.append(X)
        if len(asked) > 1:
            error_seen.wait(5.0)  # else one thread may be through with all before the first error is seen
        raise ValueError("no")

    with ThreadPoolExecutor(1) as executor:
        with pytest.raises(rs.OracleFailed):
            Oracle(f, dim=1, executor=executor, batch=1)(np.ones((100, 1)))
        error_seen.set()
    assert len(asked) < 100


# -- Dask ----------------------------------------------------------------------------------------------------


SCHEDULER = "import sys; from distributed.cli.dask_scheduler import main; main(sys.argv[1:])"
WORKER = "import sys; from distributed.cli.dask_worker import main; main(sys.argv[1:])"


def dask_process(code, folder, *arguments):
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.fixture
def cluster(tmp_path):
    """A scheduler and two workers, each a process of its own, over TCP on this machine."""
    pytest.importorskip("distributed")
    from distributed import Client

    where = tmp_path / "scheduler.json"
    common = ("--scheduler-file", where)
    scheduler = dask_process(SCHEDULER, tmp_path, *common, "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
    options = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", tmp_path)
    running = [dask_process(WORKER, tmp_path, *common, *options) for _ in range(2)]
    try:
        with Client(scheduler_file=str(where), timeout="60s", set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
            yield client, running
    finally:
        for process in (*running, scheduler):
            process.kill()
            process.wait()


@pytest.mark.heavy
@pytest.mark.filterwarnings("default")
def test_dask_gives_the_same_bits(cluster):
    client, _ = cluster
    assert same(extracted(executor=client.get_executor()), extracted())


def lines_of(log):
    return [line.split() for line in log.read_text().splitlines()]


@pytest.mark.heavy
@pytest.mark.filterwarnings("default")
def test_a_worker_killed_in_mid_run_changes_nothing(cluster, tmp_path, monkeypatch):
    client, running = cluster
    path, log = tmp_path / "run.ledger", tmp_path / "log"
    slow = Noted(log, 1e-4)
    put = Ledger.put

    def noted_put(self, key, kind, X, answers):
        put(self, key, kind, X, answers)
        self.commit()
        slow.note("held", X)
        if len(lines_of(log)) > 60 and running[0].poll() is None:
            running[0].kill()

    monkeypatch.setattr(Ledger, "put", noted_put)
    options = {"radius": 2.0, "rng": 3, "method": "slices", "max_queries": 30_000, "executor": client.get_executor()}
    found = rs.extract(slow, ledger=path, **options)
    assert running[0].wait(timeout=30) == -signal.SIGKILL
    assert len(client.scheduler_info()["workers"]) == 1
    options |= {"executor": None}
    assert same(replace(found, asked=None), replace(rs.extract(TARGET, **options), asked=None))
    held = set()
    for word, mark, rows in lines_of(log):
        if word == "held":
            held.add(mark)
        else:
            assert mark not in held or int(rows) <= 6, "asked though the ledger had it"
    assert rs.extract(TARGET, ledger=path, **options).asked <= 12 + 32


def with_mark(mark):
    """Return the processes, zombies apart, that inherited `mark` in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("idle", [False, True])
def test_no_worker_outlives_a_killed_run(tmp_path, idle):
    (tmp_path / "slow.py").write_text(
        "import os, time\n\n"
        "def f(X):\n"
        "    open(f'asked-{os.getpid()}', 'w').close()\n"
        f"    time.sleep({0.0 if idle else 0.002} * len(X))\n"
        "    return X[:, 0] * X[:, 1]\n"
    )
    mark = f"RIDGESCOPE_TEST_MARK={os.getpid()}-{idle}-{tmp_path.name}"
    name, _, value = mark.partition("=")
    command = [sys.executable, "-m", "ridgescope", "extract", "slow:f", "--dim", "2", "--workers", "2"]
    parent = subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, name: value}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while len(list(tmp_path.glob("asked-*"))) < 2:
        assert parent.poll() is None
        time.sleep(0.01)
    parent.kill()
    parent.wait()
    end = time.monotonic() + 10.0
    while with_mark(mark) and time.monotonic() < end:
        time.sleep(0.02)
    left = with_mark(mark)
    for process in left:
        os.kill(process, signal.SIGKILL)
    assert not left
