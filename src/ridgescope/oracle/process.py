"""A program that reads rows and writes answers. It is started once, fed as long as it lives, restarted when it dies.

JSON lines: each row is a line `[x1, …, xd]` on the program's standard input, and each answer a line, `y` or
`[y1, …, yp]`, on its standard output, in the same order and flushed.

Binary: a batch is two little-endian 32-bit whole numbers, m and d, and m·d little-endian float64; its answer
is m and p, and m·p float64.
"""

from __future__ import annotations

import os
import select
import shlex
import struct
import subprocess
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from ..errors import BadAnswer, InvalidInput, OracleFailed
from ..geometry import Floats
from .answers import show, show_row
from .base import Oracle
from .extras import Options
from .wire import as_numbers, as_rows, parsed

_HEADER = struct.Struct("<II")
_LARGEST = 2**30
"""Bytes of one answer; more is no answer."""


def process(
    command: str | Sequence[str],
    *,
    form: Literal["json", "binary"] = "json",
    timeout: float = 60.0,
    restarts: int = 2,
    cwd: str | os.PathLike[str] | None = None,
    dim: int | None = None,
    **options: Unpack[Options],
) -> Oracle:
    """A program as an `Oracle`; `command` is a list of words, or a line that is split as a shell would.

    A batch, 1024 rows unless `batch` says otherwise, has `timeout` seconds. A program that dies is started again and
    asked the same batch again, `restarts` times before that batch is given up; what it wrote to its standard error is
    then in the message. It runs once for each thread that asks at the same time, and ends with the oracle.
    """
    function = ProcessFunction(command, form=form, timeout=timeout, restarts=restarts, cwd=cwd)
    options.setdefault("batch", 1024)  # so much is lost when it dies
    return Oracle(function, dim=dim, **options)


class ProcessFunction:
    """Rows (m, d) to answers (m,) or (m, p) by way of a running program; idle ones are kept for the next batch."""

    def __init__(
        self,
        command: str | Sequence[str],
        *,
        form: Literal["json", "binary"] = "json",
        timeout: float = 60.0,
        restarts: int = 2,
        cwd: str | os.PathLike[str] | None = None,
    ) -> None:
        try:
            self.command = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
        except ValueError as problem:
            raise InvalidInput(f"the command {command!r} cannot be split into words: {problem}") from None
        if not self.command:
            raise InvalidInput("the command is empty; write cmd:PROGRAM ARGUMENTS")
        if form not in ("json", "binary"):
            raise InvalidInput(f'form must be "json" or "binary", not {form!r}')
        if not timeout > 0 or restarts < 0:
            raise InvalidInput(f"timeout must be positive and restarts at least 0; got {timeout!r} and {restarts!r}")
        self.form, self.timeout, self.restarts, self.cwd = form, timeout, restarts, cwd
        self._prepare()

    def _prepare(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Child] = []
        self._end = weakref.finalize(self, _stop_all, self._idle)

    def __call__(self, X: Floats) -> NDArray[Any]:
        for left in range(self.restarts, -1, -1):
            child = self._take()
            try:
                answer = child.ask(X, self.form, self.timeout)
            except _Died as death:
                told = child.stop()
                if left and not death.final:
                    continue
                raise OracleFailed(
                    f"{self!r} {death} when asked {len(X)} rows, the first of them {show_row(X[0])}. "
                    f"It wrote to its standard error: {told or '(nothing)'}"
                ) from None
            except BaseException as problem:  # what it would say next belongs to no question
                told = child.stop()
                if isinstance(problem, BadAnswer):
                    raise BadAnswer(f"{self!r}: {problem}. Its standard error: {told or '(nothing)'}") from None
                raise
            with self._lock:
                self._idle.append(child)
            return answer
        raise AssertionError("unreachable")  # pragma: no cover

    def close(self) -> None:
        """End the program; the next question starts it again."""
        with self._lock:
            _stop_all(self._idle)

    def _take(self) -> _Child:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        try:
            return _Child(self.command, self.cwd)
        except OSError as problem:
            raise OracleFailed(f"{self!r} cannot be started: {problem}. Check the name and the folder.") from None

    def __repr__(self) -> str:
        return f"the program {shlex.join(self.command)!r}"

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_lock", "_idle", "_end")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()


class _Died(Exception):
    """The program ended, or was ended; asking again does not help where it is `final`."""

    def __init__(self, message: str, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


class _Child:
    """One running program. A batch is written by a thread of its own, so that neither side waits for the other."""

    def __init__(self, command: list[str], cwd: str | os.PathLike[str] | None) -> None:
        pipe = subprocess.PIPE
        self.running = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=cwd)
        self.rest = bytearray()
        """What it wrote and nobody has read yet."""
        self.told: deque[bytes] = deque(maxlen=30)
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def ask(self, X: Floats, form: str, timeout: float) -> NDArray[Any]:
        self._nothing_left_over()
        late = threading.Event()

        def too_late() -> None:
            late.set()
            self.running.kill()

        timer = threading.Timer(timeout, too_late)
        timer.daemon = True
        timer.start()
        question = _binary(X) if form == "binary" else _lines(X)
        writer = threading.Thread(target=self._write, args=(question,), daemon=True)
        writer.start()
        try:
            answer = self._read_binary(len(X)) if form == "binary" else self._read_lines(len(X))
        except _Died:
            if late.is_set():
                raise _Died(
                    f"did not answer within timeout={timeout:g} s and was ended (does it flush its output?)", final=True
                ) from None
            raise
        finally:
            timer.cancel()
        writer.join()
        self._nothing_left_over()
        return answer

    def stop(self) -> str:
        """End it, and say what it wrote to its standard error last."""
        self.running.kill()
        self.running.wait()
        self.listener.join(timeout=5.0)
        for pipe in (self.running.stdin, self.running.stdout, self.running.stderr):
            if pipe is not None:
                with suppress(OSError, ValueError):  # unsent rows cannot be flushed any more
                    pipe.close()
        return b"".join(self.told).decode(errors="replace").strip()[-3000:]

    def _listen(self) -> None:
        with suppress(ValueError, OSError):
            while line := _of(self.running.stderr).readline(4096):
                self.told.append(line)

    def _write(self, question: bytes) -> None:
        with suppress(OSError, ValueError):  # it died; the reader will notice
            pipe = _of(self.running.stdin)
            pipe.write(question)
            pipe.flush()

    def _nothing_left_over(self) -> None:
        """More output than answers means that answers and rows no longer belong together."""
        if not self.rest and os.name == "posix" and select.select([_of(self.running.stdout)], [], [], 0.0)[0]:
            self._more("0 answers")
        if self.rest:
            raise BadAnswer(
                f"it wrote more than one line per row: {show(bytes(self.rest[:100]))}; anything else that it has to "
                "say must go to its standard error"
            )

    def _read_lines(self, m: int) -> NDArray[Any]:
        answers = []
        for row in range(m):
            seen = 0
            while (cut := self.rest.find(b"\n", seen)) < 0:
                seen = len(self.rest)
                self._more(f"{row} of {m} answers")
            answers.append(parsed(bytes(self.rest[:cut])))
            del self.rest[: cut + 1]
        return as_rows(as_numbers(answers), m)

    def _read_binary(self, m: int) -> NDArray[Any]:
        rows, p = _HEADER.unpack(self._exactly(_HEADER.size))
        if rows != m or not 0 < 8 * m * p <= _LARGEST:
            raise BadAnswer(f"the answer says {rows} rows of {p} numbers for {m} rows; expected {m} rows")
        values = np.frombuffer(self._exactly(8 * m * p), dtype="<f8").astype(np.float64)
        return values if p == 1 else values.reshape(m, p)

    def _exactly(self, count: int) -> bytes:
        while len(self.rest) < count:
            self._more(f"{len(self.rest)} of {count} bytes")
        data = bytes(self.rest[:count])
        del self.rest[:count]
        return data

    def _more(self, got: str) -> None:
        piece = os.read(_of(self.running.stdout).fileno(), 2**16)
        if not piece:
            raise self._dead(got)
        self.rest += piece
        if len(self.rest) > _LARGEST:
            raise BadAnswer(
                f"it wrote {len(self.rest):,} bytes, too much for an answer: {show(bytes(self.rest[:100]))}"
            )

    def _dead(self, got: str) -> _Died:
        with suppress(subprocess.TimeoutExpired):
            self.running.wait(timeout=1.0)
        code = self.running.poll()
        how = "closed its output" if code is None else f"ended with exit code {code}"
        return _Died(f"{how} after {got}")


def _of(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _stop_all(children: list[_Child]) -> None:
    while children:
        children.pop().stop()


def _lines(X: Floats) -> bytes:
    return "".join(f"{show_row(x)}\n" for x in X).encode()


def _binary(X: Floats) -> bytes:
    return _HEADER.pack(*X.shape) + np.ascontiguousarray(X, dtype="<f8").tobytes()
