"""A run that is killed and started again asks nothing twice and ends with the same bits."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ridgescope.oracle.ledger import Ledger

SCRIPT = Path(__file__).with_name("killed_run.py")


def start(*arguments):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def whole(process):
    """Queries and rows really asked, of a run that is left alone."""
    words = process.communicate()[0].split()
    assert process.returncode == 0
    return int(words[-2]), int(words[-1])


def held(path):
    """Questions that the ledger has the answers to."""
    if not path.exists():
        return set()
    with Ledger(path, 4) as ledger:
        return {mark.hex() for mark, _ in ledger._index}


def asked(log):
    """Questions really asked, without those of six rows or fewer, which are asked more than once on purpose."""
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    log.unlink(missing_ok=True)
    return {mark for mark, rows in lines if int(rows) > 6}


def killed_and_resumed(tmp_path, by_the_clock, inside):
    path, log = tmp_path / "run.ledger", tmp_path / "asked"
    first = start("", tmp_path / "expected", log)
    first.stdout.readline()  # the package is imported
    begun = time.monotonic()
    queries, _ = whole(first)
    length = time.monotonic() - begun
    asked(log)
    rng = np.random.default_rng(3)
    ways = rng.permutation([True] * by_the_clock + [False] * inside)
    kills = 0
    for clock in ways:
        known = held(path)
        with start(path, tmp_path / "out", log, 0 if clock else rng.integers(20, 2000)) as process:
            process.stdout.readline()
            try:
                process.wait(timeout=rng.uniform(0.0, 0.8 * length) if clock else None)
            except subprocess.TimeoutExpired:
                process.kill()
        kills += process.returncode == -9
        assert not known & asked(log)
    known = held(path)
    assert known
    again, rows_asked = whole(start(path, tmp_path / "out", log))
    assert again == queries
    assert rows_asked < queries
    assert not known & asked(log)
    again, rows_asked = whole(start(path, tmp_path / "out", log))
    assert again == queries
    assert rows_asked <= 12 + 32 * 9, "six rows twice, and two rows of sixteen blocks, nine times where noise shows"
    for name in ("result.json", "arrays.safetensors"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "expected" / name).read_bytes()
    return kills


def test_killed_four_times(tmp_path):
    assert killed_and_resumed(tmp_path, 2, 2) >= 2


@pytest.mark.heavy
def test_killed_twenty_times(tmp_path):
    assert killed_and_resumed(tmp_path, 12, 12) >= 20


@pytest.mark.parametrize("blocks", [1, 2, 5, 9])
def test_dear_answers_are_on_disk_before_the_next_block_is_asked(tmp_path, blocks):
    """A function that takes 1 ms per row loses nothing that it has answered to a SIGKILL, nor to a loss of power."""
    path = tmp_path / "run.ledger"
    command = [sys.executable, str(SCRIPT.with_name("dear_run.py")), str(path), str(blocks), "0.001"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == -9, done.stderr
    rows, synced = map(int, done.stdout.split())
    assert rows > 0
    with Ledger(path, 2) as ledger:
        assert sum(block.shape[0] for _, block in ledger._index.values()) == rows
    assert synced
