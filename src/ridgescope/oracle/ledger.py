"""The ledger: every answer is on disk before it is used, so that an interrupted run asks nothing twice.

The queries of a run depend on its seed and on the answers alone. A run that is started again with the stored answers
repeats the same steps up to the point where it was interrupted: the ledger is the checkpoint.

The file is an SQLite database in WAL mode with one table of numbered segments (see `segments`). Segment 0 holds the
fingerprint of the function. A small file beside the database holds the number of segments, because SQLite cannot
distinguish a write-ahead log that lost its end from one that was never longer. After a restart of the machine only
the segments that were synced to disk count.

A commit always survives the end of this process, however sudden. It survives a loss of power if it was synced, and
it is synced if the function takes 1 ms or more per row, or as long as all waiting for the disk takes at most 1/60 of
the time since the ledger was opened: what a loss of power can undo takes a fraction of a second to ask again."""

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
from . import segments
from .ledger_probes import Probes
from .segments import BlockLocation, Damaged, Fingerprint, FingerprintMismatch, Key, Raw

_TABLE = "CREATE TABLE segment (number INTEGER PRIMARY KEY, body BLOB NOT NULL)"
_INSERT = "INSERT INTO segment VALUES (?, ?)"
_PRAGMAS = (
    "page_size=16384",  # measured: a third less work than the usual 4096 for blobs of this size
    "trusted_schema=OFF",
    "cell_size_check=ON",
    "locking_mode=EXCLUSIVE",
    "synchronous=OFF",  # until the table exists there are no answers to protect
    "journal_mode=WAL",
    "wal_autocheckpoint=8000",  # 128 MB: moving the log into the file means waiting for the disk
)
_SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""Errors that SQLite raises; the second occurs when its message quotes a damaged file."""
_SYNC_SHARE = 1.0 / 60.0
"""Largest share of the run's time spent waiting for the disk: less than a user would notice."""
_FIRST_SYNC_SECONDS = 0.004
"""Assumed seconds for one sync before the first is timed: typical of an SSD."""
_MAX_PENDING_BYTES = 2**24
"""Bytes of answers that may wait for a commit: this bounds memory, and what a kill can lose."""
_CACHED_SEGMENTS = 4
"""Number of segments kept in memory: a resumed run reads them nearly in order."""


class Ledger:
    """Answers on disk, indexed by the block of rows that was asked.

    One process at a time may open it; a killed one leaves nothing locked. `dim` is the number of inputs of the function
    and `batch` the number of rows per call that the user set, or None.
    """

    def __init__(self, path: str | os.PathLike[str], dim: int, batch: int | None = None) -> None:
        self.path, self._dim, self._batch = _checked_path(path), dim, batch
        self.rows_asked = 0
        """Number of rows that the function was asked while this ledger was open."""
        self._lock = threading.RLock()
        self._occurrences: Counter[bytes] = Counter()
        """How often each block, by its digest, was asked since the ledger was opened."""
        self._index: dict[Key, tuple[int, BlockLocation]] = {}
        self._pending: dict[Key, Raw] = {}
        self._pending_bytes = 0
        self._cache: OrderedDict[int, bytes] = OrderedDict()
        self._opened_at = time.perf_counter()
        self._sync_seconds, self._one_sync = 0.0, _FIRST_SYNC_SECONDS  # seconds spent waiting, and in one wait
        self._synchronous = "NORMAL"
        self._segments = self._synced = 0  # number of segments, and how many are known to survive a loss of power
        self.fingerprint: Fingerprint | None = None
        """Fingerprint of the function that gave these answers; None while there are none."""
        self._count_path = Path(f"{self.path}-count")
        self._count_file: FileIO | None = None
        self._checkpoint_thread: threading.Thread | None = None
        self._database = self._open_database()
        try:
            self._load()
            self._probes = Probes(self._index)
        except BaseException:
            self._release()
            raise

    # -- answers --------------------------------------------------------------------------------------------

    def key(self, kind: str, X: Floats) -> Key:
        """Return the key of a block and count the request: a noisy function may answer differently each time."""
        mark = segments.digest(kind, X)
        with self._lock:
            self._occurrences[mark] += 1
            return mark, self._occurrences[mark] - 1

    def get(self, key: Key) -> Raw | None:
        """Return the stored answer in the type in which the function gave it, or None."""
        with self._lock:
            if key in self._pending:
                return self._pending[key]
            if key not in self._index:
                return None
            number, block = self._index[key]
            return block.read(self._body(number))

    def __contains__(self, key: Key) -> bool:
        return key in self._pending or key in self._index

    def put(self, key: Key, kind: str, X: Floats, answers: Raw) -> None:
        """Keep what the function answered at the rows of X (m, d); the next `commit` stores it."""
        with self._lock:
            if self.fingerprint is None:
                self.fingerprint = Fingerprint.of(self._dim, self._batch, kind, X, answers)
            self._pending[key] = answers
            self._pending_bytes += answers.nbytes
            self.rows_asked += len(X)
            is_large = self._pending_bytes > _MAX_PENDING_BYTES
        if is_large:
            self.commit()

    def commit(self, *, durable: bool = False) -> None:
        """Store all pending answers in the file; if `durable`, wait until the disk has them."""
        with self._lock:
            if not self._pending or self.fingerprint is None:
                return
            number = max(self._segments, 1)
            parts, where = segments.pack_blocks(self._pending)
            rows = [(number, segments.seal(parts, self._name, number))]
            if not self._segments:
                rows.insert(0, (0, segments.seal([self.fingerprint.pack()], b"", 0)))
            was_synced = self._write(rows, durable)
            self._segments = number + 1
            self._index |= {key: (number, block) for key, block in where.items()}
            self._synced = self._segments if was_synced else self._synced
            self._pending, self._pending_bytes = {}, 0
            self._write_count()

    @property
    def _name(self) -> bytes:
        """Name of the ledger as 16 bytes, empty while it holds no answers."""
        return bytes.fromhex(self.fingerprint.name) if self.fingerprint is not None else b""

    def __len__(self) -> int:
        """Return the number of answered blocks."""
        return len(self._index) + len(self._pending)

    def verify_function(
        self, functions: Mapping[str, Callable[[Floats], Any]], within_reach: Callable[[Floats], NDArray[np.bool_]]
    ) -> None:
        """Ask the function a few stored rows again; raise `LedgerProblem` if it answers differently."""
        if self.fingerprint is not None:
            try:
                self.rows_asked += self.fingerprint.verify(self._dim, self._batch, functions, within_reach)
            except FingerprintMismatch as problem:
                self._raise_mismatch(problem)

    def verify_block(self, key: Key, X: Floats, answers: Raw, function: Callable[[Floats], Any]) -> None:
        """Ask a few rows of a stored block again, if `ledger_probes` has chosen it; raise as `verify_function` does."""
        try:
            self.rows_asked += self._probes.check(key, X, answers, function)
        except FingerprintMismatch as problem:
            self._raise_mismatch(problem)

    # -- the file -------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Start moving the write-ahead log into the file in the background; closing would do it, and wait."""
        self.commit()
        if self._checkpoint_thread is None:
            self._checkpoint_thread = threading.Thread(target=self._checkpoint, name="ridgescope-ledger")
            self._checkpoint_thread.start()

    def _checkpoint(self) -> None:
        with self._lock, suppress(sqlite3.Error):  # the log remains, and the next run reads it
            self._database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def close(self) -> None:
        """Store the pending answers and release the file."""
        if self._checkpoint_thread is not None:
            self._checkpoint_thread.join()
        with self._lock:
            try:
                self.commit()
            finally:
                self._release()

    def _release(self) -> None:
        with suppress(sqlite3.Error):  # the log remains, and the next run reads it
            self._database.close()
        if self._count_file is not None:
            self._count_file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _open_database(self) -> sqlite3.Connection:
        """Return a connection that has locked the file; a new file gets its table."""
        try:
            database = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as problem:
            raise LedgerProblem(f"cannot open {self.path}: {problem}. Is the folder writable?") from problem
        database.text_factory = bytes
        try:
            for pragma in _PRAGMAS:
                database.execute(f"PRAGMA {pragma}").fetchall()
            database.execute("BEGIN EXCLUSIVE")
            schema = database.execute("SELECT sql FROM sqlite_master LIMIT 9").fetchall()
            if not schema:
                database.execute(_TABLE)
            database.execute("COMMIT")
            database.execute("PRAGMA synchronous=NORMAL")
        except _SQLITE_ERRORS as problem:
            database.close()
            self._raise_sqlite_problem(problem)
        if schema not in ([], [(_TABLE.encode(),)]):
            database.close()
            raise LedgerProblem(f"{self.path} is an SQLite file, but not a ledger. Choose another name for the ledger.")
        return database

    def _load(self) -> None:
        """Read every segment once, check it, and index its blocks."""
        try:
            for number, body in self._database.execute("SELECT number, body FROM segment ORDER BY number"):
                if number != self._segments:
                    raise Damaged(f"is missing (the next one is number {number})")
                content = segments.check(body, self._name if number else b"", number)
                if number:
                    self._index |= {key: (number, block) for key, block in segments.block_locations(content)}
                else:
                    self.fingerprint = Fingerprint.unpack(content[: -segments.CHECKSUM])
                self._segments += 1
        except _SQLITE_ERRORS as problem:
            self._raise_sqlite_problem(problem)
        except Damaged as problem:
            self._raise_damaged(f"part {self._segments} {problem}")
        except FingerprintMismatch as problem:
            self._raise_mismatch(problem)
        stored = self._read_count()
        if stored is not None and stored > self._segments:
            self._raise_damaged(f"{stored} parts were stored and only {self._segments} are left")
        if self._segments:
            try:
                self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            except sqlite3.Error as problem:
                self._raise_sqlite_problem(problem)
            self._synced = self._segments
            self._write_count()

    def _body(self, number: int) -> bytes:
        """Return the bytes of a segment, from memory if it was read recently."""
        if number in self._cache:
            self._cache.move_to_end(number)
            return self._cache[number]
        try:
            row = self._database.execute("SELECT body FROM segment WHERE number = ?", (number,)).fetchone()
            body = segments.check(row[0] if row else None, self._name, number)
        except _SQLITE_ERRORS as problem:
            self._raise_sqlite_problem(problem)
        except Damaged as problem:
            self._raise_damaged(f"part {number} {problem}")
        self._cache[number] = body
        if len(self._cache) > _CACHED_SEGMENTS:
            self._cache.popitem(last=False)
        return body

    def _write(self, rows: list[tuple[int, bytes]], durable: bool) -> bool:
        """Insert the rows in one transaction; return whether it was synced to disk."""
        start = time.perf_counter()
        sync = durable or self._sync_seconds + self._one_sync <= (start - self._opened_at) * _SYNC_SHARE
        try:
            self._set_synchronous("FULL" if sync else "NORMAL")
            if len(rows) == 1:  # a single statement is a transaction by itself
                self._database.execute(_INSERT, rows[0])
            else:
                self._database.execute("BEGIN IMMEDIATE")
                self._database.executemany(_INSERT, rows)
                self._database.execute("COMMIT")
        except sqlite3.Error as problem:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            self._pending, self._pending_bytes = {}, 0
            self._raise_sqlite_problem(problem)
        if sync:
            took = time.perf_counter() - start
            self._sync_seconds += took
            self._one_sync = 0.5 * (self._one_sync + took)  # a moving average: a single slow sync is not typical
        return sync

    def _set_synchronous(self, mode: str) -> None:
        if mode != self._synchronous:
            self._database.execute(f"PRAGMA synchronous={mode}")
        self._synchronous = mode

    def _read_count(self) -> int | None:
        """Return the number of segments according to the file beside the ledger; None if there is no such file."""
        try:
            text = self._count_path.read_text(encoding="ascii")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as problem:
            self._raise_bad_count(str(problem))
        words = text.split()
        if len(words) != 4 or any(not n.isdecimal() or len(n) > 12 for n in words[:2]):
            self._raise_bad_count(f"it reads {text[:40]!r}")
        if self._name and words[3] != self._name.hex():
            self._raise_bad_count("it belongs to another ledger")
        return int(words[0] if words[2] == _boot_id() else words[1])

    def _write_count(self) -> None:
        """Write the count file; called after the commit, so that the count never exceeds what is stored."""
        text = f"{self._segments:012d} {self._synced:012d} {_boot_id()} {self._name.hex()}\n".encode()
        try:
            if self._count_file is None:
                self._count_file = self._count_path.open("r+b" if self._count_path.exists() else "w+b", buffering=0)
            self._count_file.seek(0)
            self._count_file.write(text)
        except OSError as problem:
            raise LedgerProblem(
                f"cannot write {self._count_path}: {problem.strerror}. The answers themselves are stored; "
                "correct this and start the run again."
            ) from problem

    # -- errors ---------------------------------------------------------------------------------------------

    def _raise_sqlite_problem(self, problem: sqlite3.Error | UnicodeDecodeError) -> NoReturn:
        """Raise a `LedgerProblem` that explains an error of SQLite and names the remedy."""
        if isinstance(problem, UnicodeDecodeError):
            self._raise_damaged("SQLite's own message about it cannot be decoded")
        code = getattr(problem, "sqlite_errorcode", 0) & 0xFF  # the primary code, without its extension
        if code == sqlite3.SQLITE_CORRUPT:
            self._raise_damaged(str(problem))
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            why = "is in use by another run. Wait for it to end, or give this run a ledger of its own."
        elif code == sqlite3.SQLITE_FULL:
            why = (
                f"cannot grow: the disk is full. {len(self._index):,} answered blocks are stored safely; free some "
                "space and start the run again with this ledger, and it continues from there."
            )
        elif code == sqlite3.SQLITE_NOTADB:
            why = "is not a ledger. Choose another name for the ledger, or delete the file."
        else:
            why = f"cannot be used: {problem}. Are the file and its folder writable?"
        raise LedgerProblem(f"{self.path} {why}") from problem

    def _raise_damaged(self, what: str) -> NoReturn:
        raise LedgerProblem(
            f"{self.path} is damaged: {what}. None of its answers was used. Restore it from a copy, or delete it, and "
            "the files beside it that begin with its name, to ask everything again."
        )

    def _raise_mismatch(self, problem: FingerprintMismatch) -> NoReturn:
        raise LedgerProblem(
            f"{self.path} {problem}. Give this run a ledger of its own, or delete this one to start anew."
        ) from problem

    def _raise_bad_count(self, why: str) -> NoReturn:
        raise LedgerProblem(
            f"{self._count_path} is not the count that goes with {self.path}: {why}. It only guards against answers "
            "lost from the end; delete it to continue without that check."
        )


@cache
def _boot_id() -> str:
    """Return a text that changes when the machine restarts, after which writes that were not synced may be lost."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() or "unknown"
    except (OSError, ValueError):
        return str(os.getpid())  # not known on this system: trust only what was synced


def _checked_path(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a ledger; raise `InvalidInput` unless it is a file name in an existing folder."""
    try:
        text = os.fspath(path)
    except TypeError:
        text = None
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidInput(f'ledger must be the name of a file, such as "run.ledger"; got {path!r}')
    where = Path(text).absolute()  # SQLite would not take ":memory:", for example, as a file name
    try:
        why = "that is a folder" if where.is_dir() else "" if where.parent.is_dir() else f"no folder {where.parent}"
    except OSError as problem:
        why = str(problem.strerror)
    if why:
        raise InvalidInput(f"ledger={text!r}: {why}; name a file in a folder that exists")
    return where
