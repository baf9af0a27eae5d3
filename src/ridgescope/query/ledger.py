"""The ledger: every answer on disk before it is used, so that a run that was cut short asks nothing twice.

A run's questions follow from its seed and from the answers alone. Run it again on the answers it had, and it
walks the same way up to the point where it was interrupted: the ledger is the checkpoint.

The file is an SQLite database in WAL mode with one table of numbered segments (`segment`). Segment 0 says whose
answers these are: dimension, batch, and a few questions with their answers. Beside it stands a small file that
holds the number of segments, for SQLite takes a log that lost its end for one that was never longer; after the
machine was started anew only those count that the disk had confirmed.

What a commit survives: always the end of this process, however sudden. The loss of power too, wherever the disk
was waited for; that is done with every commit as long as waiting takes no more than one part in `_WORTH` of the
time since the ledger was opened. A run whose answers or whose thinking take time therefore waits every time, and
what a loss of power can undo of a run that asks a million questions a second is bought again in a fraction of one.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput, LedgerProblem
from ..geometry import Floats
from .owner import Owner, Stranger
from .segment import CHECKSUM, Damaged, Key, Place, Raw, check, digest, laid_out, places, seal

_TABLE = "CREATE TABLE segment (number INTEGER PRIMARY KEY, body BLOB NOT NULL)"
_SETTINGS = (
    "page_size=16384",  # a third less work than the usual 4096 for blobs of this size
    "trusted_schema=OFF",
    "cell_size_check=ON",
    "locking_mode=EXCLUSIVE",
    "synchronous=OFF",  # until the table is there: no answers, nothing to wait for
    "journal_mode=WAL",
    "wal_autocheckpoint=8000",  # 128 MB: moving the log into the file means waiting for the disk
)
_INSERT = "INSERT INTO segment VALUES (?, ?)"
_PROBLEMS = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite raises; the second where its message quotes a damaged file."""
_WORTH = 60.0
_LARGE = 2**24
"""Bytes that wait for a commit at most."""
_READ = 4
"""Segments kept in memory."""


class Ledger:
    """Answers on disk, by what was asked. One process at a time; a killed one leaves nothing locked."""

    def __init__(self, path: str | os.PathLike[str], dim: int, batch: int | None = None) -> None:
        self.path, self._dim, self._batch = _usable(path), dim, batch
        self.bought = 0
        """Rows asked because the answer was not here."""
        self._lock = threading.RLock()
        self._asked: Counter[bytes] = Counter()
        self._index: dict[Key, tuple[int, Place]] = {}
        self._new: dict[Key, Raw] = {}
        self._read: OrderedDict[int, bytes] = OrderedDict()
        self._waiting = 0
        self._start = time.perf_counter()
        self._waited, self._wait = 0.0, 0.004
        """Seconds spent on waiting for the disk, and what it takes once."""
        self._synchronous = "NORMAL"
        self._segments = self._confirmed = 0
        self.owner: Owner | None = None
        """Whose answers these are; None while there are none."""
        self._count = Path(f"{self.path}-count")
        self._counter: FileIO | None = None
        self._settling: threading.Thread | None = None
        self._database = self._opened()
        try:
            self._load()
        except BaseException:
            self._let_go()
            raise

    # -- asking ---------------------------------------------------------------------------------------------

    def key(self, kind: str, X: Floats) -> Key:
        """Name of a question. A question asked for the second time is another one: the function may be noisy."""
        mark = digest(kind, X)
        with self._lock:
            self._asked[mark] += 1
            return mark, self._asked[mark] - 1

    def get(self, key: Key) -> Raw | None:
        """The answer as the function gave it, or None."""
        with self._lock:
            if key in self._new:
                return self._new[key]
            if key not in self._index:
                return None
            number, place = self._index[key]
            return place.read(self._body(number))

    def __contains__(self, key: Key) -> bool:
        return key in self._new or key in self._index

    def put(self, key: Key, kind: str, X: Floats, answers: Raw) -> None:
        """To be stored with the next `commit`: what the function answered at the rows of X."""
        with self._lock:
            if self.owner is None:
                self.owner = Owner.of(self._dim, self._batch, kind, X, answers)
            self._new[key] = answers
            self._waiting += answers.nbytes
            self.bought += len(X)
            large = self._waiting > _LARGE
        if large:
            self.commit()

    def commit(self) -> None:
        """Store what was put. When this returns, it is on disk."""
        with self._lock:
            if not self._new or self.owner is None:
                return
            number = max(self._segments, 1)
            parts, where = laid_out(self._new)
            body = seal(parts, self._name, number)
            dear = self._write(
                [(number, body)] if self._segments else [(0, seal([self.owner.pack()], b"", 0)), (number, body)]
            )
            self._segments = number + 1
            self._index |= {key: (number, place) for key, place in where.items()}
            self._confirmed = self._segments if dear else self._confirmed
            self._new, self._waiting = {}, 0
            self._note_count()

    @property
    def _name(self) -> bytes:
        return bytes.fromhex(self.owner.name) if self.owner is not None else b""

    def __len__(self) -> int:
        """Questions answered."""
        return len(self._index) + len(self._new)

    def recognise(
        self, asks: Mapping[str, Callable[[Floats], Any]], allowed: Callable[[Floats], NDArray[np.bool_]]
    ) -> None:
        """Are these the answers of the function that `asks` calls? It is asked a few questions again."""
        if self.owner is not None:
            try:
                self.bought += self.owner.recognise(self._dim, self._batch, asks, allowed)
            except Stranger as problem:
                self._refuse(problem)

    # -- the file -------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Move the log into the file in the background: for a run that has asked all it wanted, and still thinks.

        Closing would do the same and wait for the disk. An answer that comes after all is stored as ever.
        """
        self.commit()
        if self._settling is None:
            self._settling = threading.Thread(target=self._settle, name="ridgescope-ledger")
            self._settling.start()

    def _settle(self) -> None:
        with self._lock, suppress(sqlite3.Error):  # the log stays, as when closing fails
            self._database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def close(self) -> None:
        """Store what is left and let go of the file."""
        if self._settling is not None:
            self._settling.join()
        with self._lock:
            try:
                self.commit()
            finally:
                self._let_go()

    def _let_go(self) -> None:
        with suppress(sqlite3.Error):  # the log stays behind, and the next run reads it
            self._database.close()
        if self._counter is not None:
            self._counter.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _opened(self) -> sqlite3.Connection:
        try:
            database = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as problem:
            raise LedgerProblem(f"cannot open {self.path}: {problem}. Is the folder there, and writable?") from problem
        database.text_factory = bytes
        try:
            for line in _SETTINGS:
                database.execute(f"PRAGMA {line}").fetchall()
            database.execute("BEGIN EXCLUSIVE")
            schema = database.execute("SELECT sql FROM sqlite_master LIMIT 9").fetchall()
            if not schema:
                database.execute(_TABLE)
            database.execute("COMMIT")
            database.execute("PRAGMA synchronous=NORMAL")
        except _PROBLEMS as problem:
            database.close()
            self._explain(problem)
        if schema not in ([], [(_TABLE.encode(),)]):
            database.close()
            raise LedgerProblem(f"{self.path} is an SQLite file, but not a ledger. Choose another name for the ledger.")
        return database

    def _load(self) -> None:
        """Read everything once and check it."""
        try:
            for number, body in self._database.execute("SELECT number, body FROM segment ORDER BY number"):
                if number != self._segments:
                    raise Damaged(f"is missing (the next one is number {number})")
                content = check(body, self._name if number else b"", number)
                if number:
                    self._index |= {key: (number, place) for key, place in places(content)}
                else:
                    self.owner = Owner.unpack(content[:-CHECKSUM])
                self._segments += 1
        except _PROBLEMS as problem:
            self._explain(problem)
        except Damaged as problem:
            self._damaged(f"part {self._segments} {problem}")
        except Stranger as problem:
            self._refuse(problem)
        stored = self._stored_count()
        if stored is not None and stored > self._segments:
            self._damaged(f"{stored} parts were stored and only {self._segments} are left")
        if self._segments:
            try:
                self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            except sqlite3.Error as problem:
                self._explain(problem)
            self._confirmed = self._segments
            self._note_count()

    def _body(self, number: int) -> bytes:
        if number in self._read:
            self._read.move_to_end(number)
            return self._read[number]
        try:
            row = self._database.execute("SELECT body FROM segment WHERE number = ?", (number,)).fetchone()
            body = check(row[0] if row else None, self._name, number)
        except _PROBLEMS as problem:
            self._explain(problem)
        except Damaged as problem:
            self._damaged(f"part {number} {problem}")
        self._read[number] = body
        if len(self._read) > _READ:
            self._read.popitem(last=False)
        return body

    def _write(self, rows: list[tuple[int, bytes]]) -> bool:
        """One transaction; was the disk waited for?"""
        start = time.perf_counter()
        dear = self._waited + self._wait <= (start - self._start) / _WORTH
        try:
            self._set_synchronous("FULL" if dear else "NORMAL")
            if len(rows) == 1:  # a statement of its own is a transaction of its own
                self._database.execute(_INSERT, rows[0])
            else:
                self._database.execute("BEGIN IMMEDIATE")
                self._database.executemany(_INSERT, rows)
                self._database.execute("COMMIT")
        except sqlite3.Error as problem:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            self._new, self._waiting = {}, 0
            self._explain(problem)
        if dear:
            took = time.perf_counter() - start
            self._waited += took
            self._wait = 0.5 * (self._wait + took)  # one slow answer of the disk is not its habit
        return dear

    def _set_synchronous(self, mode: str) -> None:
        if mode != self._synchronous:
            self._database.execute(f"PRAGMA synchronous={mode}")
            self._synchronous = mode

    def _stored_count(self) -> int | None:
        """What the file beside the ledger says; None where there is none."""
        try:
            text = self._count.read_text(encoding="ascii")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as problem:
            self._bad_count(str(problem))
        words = text.split()
        if len(words) != 4 or any(not n.isdecimal() or len(n) > 12 for n in words[:2]):
            self._bad_count(f"it reads {text[:40]!r}")
        if self._name and words[3] != self._name.hex():
            self._bad_count("it belongs to another ledger")
        return int(words[0] if words[2] == _boot() else words[1])

    def _note_count(self) -> None:
        """After the commit, never before it: the count may lag, but is never ahead of what is stored."""
        text = f"{self._segments:012d} {self._confirmed:012d} {_boot()} {self._name.hex()}\n".encode()
        try:
            if self._counter is None:
                self._counter = self._count.open("r+b" if self._count.exists() else "w+b", buffering=0)
            self._counter.seek(0)
            self._counter.write(text)
        except OSError as problem:
            raise LedgerProblem(
                f"cannot write {self._count}: {problem.strerror}. The answers themselves are stored; "
                "put that right and start the run again."
            ) from problem

    # -- what went wrong ------------------------------------------------------------------------------------

    def _explain(self, problem: sqlite3.Error | UnicodeDecodeError) -> NoReturn:
        text = str(problem)
        if isinstance(problem, UnicodeDecodeError):
            self._damaged("even SQLite's own words about it cannot be read")
        if "locked" in text:
            why = "is in use by another run. Wait for it to end, or give this run a ledger of its own."
        elif "full" in text:
            why = (
                f"cannot grow: the disk is full. {len(self._index):,} answered questions are stored safely; free some "
                "space and start the run again with this ledger, and it goes on from there."
            )
        elif "not a database" in text:
            why = "is not a ledger. Choose another name for the ledger, or delete the file."
        elif "malformed" in text or "corrupt" in text:
            self._damaged(text)
        else:
            why = f"cannot be used: {text}. Are file and folder writable?"
        raise LedgerProblem(f"{self.path} {why}") from problem

    def _damaged(self, what: str) -> NoReturn:
        raise LedgerProblem(
            f"{self.path} is damaged: {what}. Nothing of it was used. Restore it from a copy, or delete it together "
            "with the files beside it that begin with its name, to ask everything again."
        )

    def _refuse(self, problem: Stranger) -> NoReturn:
        raise LedgerProblem(
            f"{self.path} {problem}. Give this run a ledger of its own, or delete this one to start anew."
        ) from problem

    def _bad_count(self, why: str) -> NoReturn:
        raise LedgerProblem(
            f"{self._count} is not the count that goes with {self.path}: {why}. It only guards against answers lost "
            "from the end; delete it to go on without that check."
        )


@cache
def _boot() -> str:
    """Changes when the machine starts anew, and with it what was written but not confirmed may be gone."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() or "unknown"
    except (OSError, ValueError):
        return str(os.getpid())  # not known here: trust only what was confirmed


def _usable(path: str | os.PathLike[str]) -> Path:
    try:
        text = os.fspath(path)
    except TypeError:
        text = None
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidInput(f'ledger must be the name of a file, such as "run.ledger"; got {path!r}')
    where = Path(text).absolute()  # so that no name, such as ":memory:", means something else to SQLite
    try:
        why = "that is a folder" if where.is_dir() else "" if where.parent.is_dir() else f"no folder {where.parent}"
    except OSError as problem:
        why = str(problem.strerror)
    if why:
        raise InvalidInput(f"ledger={text!r}: {why}; name a file in a folder that is there")
    return where
