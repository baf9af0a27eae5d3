"""Programs that read rows and write answers; one is started once, used for many batches, and restarted if it dies.

JSON lines: each row is a line `[x1, …, xd]` on the program's standard input, and each answer a line, `y` or
`[y1, …, yp]`, on its standard output, in the same order and flushed.

Binary: a batch is two little-endian unsigned 32-bit numbers, m and d, and m·d little-endian float64; its answer is m
and p in the same form, and m·p float64.

A program has a process group of its own, which is killed as a whole: with whatever the program has started. Where this
process dies without a chance to do so, by SIGKILL for instance, a small shell beside the program kills the group: it
waits at the end of a pipe that only this process holds open. Systems without process groups (Windows) have neither:
there the program alone is killed, and learns of our death by the end of its standard input.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import struct
import subprocess
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from ..errors import BadAnswer, InvalidInput, OracleFailed
from ..geometry import Floats
from .answers import as_rows, json_to_array, parse_json, show, show_row
from .base import Oracle
from .specs import Options

_HEADER = struct.Struct("<II")
_BATCH = 1024
"""Default number of rows per batch: this many must be asked again if the program dies."""
_MAX_ANSWER_BYTES = 2**30
"""A longer answer is refused, which bounds memory and detects a program that never stops writing."""
_STDERR_LINES, _STDERR_LINE_BYTES, _STDERR_SHOWN = 30, 4096, 3000
"""Limits on what an error message shows of the program's standard error: last lines, bytes of a line, characters in
total."""
_HAS_GROUPS = os.name == "posix"
_GUARD = 'read group; read end || kill -s KILL -- "-$group"'
"""What the guard runs: `read` fails when the pipe is closed without a line, which is what our death looks like."""
_EXIT_SECONDS, _STDERR_SECONDS = 1.0, 5.0
"""Seconds to wait for the exit code of a program that closed its output, and for the rest of its standard error."""


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
    """Return an oracle for a program that reads rows on its standard input and writes answers to its standard output.

    One copy of the program runs for each thread that asks at the same time, and ends with the oracle.

    Parameters
    ----------
    command
        A list of words, or a line that is split into words as a shell would do.
    form
        "json" for one line of JSON per row, "binary" for arrays of float64.
    timeout
        Time limit for one batch in seconds; a program that exceeds it is killed and not asked again.
    restarts
        How often a program that dies during a batch is started again and asked the same batch.
    cwd
        Folder that the program runs in.
    dim
        Number of inputs.
    options
        Passed on to `Oracle`; `batch` defaults to 1,024.

    Returns
    -------
    Oracle
        Can be passed to `rs.extract`, or called with (m, d) arrays.

    Raises
    ------
    InvalidInput
        If a setting cannot be used.
    OracleFailed
        When the oracle is asked, if the program cannot be started, dies too often or takes too long; the message
        shows what the program wrote to its standard error.

    Examples
    --------
    >>> import sys
    >>> code = "import json; [print(sum(json.loads(line)), flush=True) for line in iter(input, '')]"
    >>> process([sys.executable, "-c", code], dim=2)([[1.0, 2.0]])
    array([[3.]])
    """
    function = ProcessFunction(command, form=form, timeout=timeout, restarts=restarts, cwd=cwd)
    options.setdefault("batch", _BATCH)
    return Oracle(function, dim=dim, **options)


class ProcessFunction:
    """Maps rows (m, d) to a program's answers (m,) or (m, p); a program not in use is kept for the next batch."""

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
        self._reset()

    def _reset(self) -> None:
        """Start with no running program; also called after unpickling."""
        self._lock = threading.Lock()
        self._unused: list[_Child] = []
        self._end = weakref.finalize(self, _stop_all, self._unused)

    def __call__(self, X: Floats) -> NDArray[Any]:
        for left in range(self.restarts, -1, -1):
            child = self._take()
            try:
                answer = child.ask(X, self.form, self.timeout)
            except _Died as death:
                words = child.stop()
                if left and not death.final:
                    continue
                raise OracleFailed(
                    f"{self!r} {death} when asked {len(X)} rows, the first of them {show_row(X[0])}. "
                    f"It wrote to its standard error: {words or '(nothing)'}"
                ) from None
            except BaseException as problem:  # its next output would not belong to the next batch
                words = child.stop()
                if isinstance(problem, BadAnswer):
                    raise BadAnswer(f"{self!r}: {problem}. Its standard error: {words or '(nothing)'}") from None
                raise
            with self._lock:
                self._unused.append(child)
            return answer
        raise AssertionError("unreachable")  # pragma: no cover

    def close(self) -> None:
        """End all programs that are not in use; the next batch starts one again."""
        with self._lock:
            _stop_all(self._unused)

    def _take(self) -> _Child:
        """Return a running program that is not in use, or start one."""
        with self._lock:
            if self._unused:
                return self._unused.pop()
        try:
            return _Child(self.command, self.cwd)
        except OSError as problem:
            raise OracleFailed(f"{self!r} cannot be started: {problem}. Check the name and the folder.") from None

    def __repr__(self) -> str:
        return f"the program {shlex.join(self.command)!r}"

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_lock", "_unused", "_end")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()


class _Died(Exception):
    """The program ended or was killed; `final` means that asking again would not help."""

    def __init__(self, message: str, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


class _Child:
    """One running program. A thread of its own writes each batch, so that neither side waits for the other."""

    def __init__(self, command: list[str], cwd: str | os.PathLike[str] | None) -> None:
        pipe = subprocess.PIPE
        self.guard = _Guard() if _HAS_GROUPS else None
        try:
            self.running = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=cwd, start_new_session=_HAS_GROUPS
            )
        except BaseException:
            if self.guard is not None:
                self.guard.dismiss()
            raise
        if self.guard is not None:
            self.guard.watch(self.running.pid)
        self.end = 0.0
        """When the batch at hand must be answered, by `time.monotonic`."""
        self.writer: threading.Thread | None = None
        self.unread = bytearray()
        """Bytes of its standard output that were received but not yet used."""
        self.stderr_lines: deque[bytes] = deque(maxlen=_STDERR_LINES)
        self.stderr_thread = threading.Thread(target=self._read_stderr, daemon=True)
        self.stderr_thread.start()

    def ask(self, X: Floats, form: str, timeout: float) -> NDArray[Any]:
        """Return the program's answers to one batch; raise `_Died` if it ends, or is killed after `timeout` seconds."""
        self._check_nothing_unread()
        self.end = time.monotonic() + timeout
        timer = threading.Timer(timeout, self._kill)  # where reading cannot have a time limit of its own
        timer.daemon = True
        timer.start()
        question = _binary(X) if form == "binary" else _lines(X)
        self.writer = threading.Thread(target=self._write, args=(question,), daemon=True)
        self.writer.start()
        try:
            answer = self._read_binary(len(X)) if form == "binary" else self._read_lines(len(X))
            self.writer.join(max(0.0, self.end - time.monotonic()))
            if self.writer.is_alive():
                raise _Died("answered without reading all its rows")
        except _Died:
            if time.monotonic() >= self.end:
                raise _Died(
                    f"did not answer within timeout={timeout:g} s and was killed (does it flush its output?)",
                    final=True,
                ) from None
            raise
        finally:
            timer.cancel()
        self._check_nothing_unread()
        return answer

    def _kill(self) -> None:
        """Kill the program and everything in its process group."""
        if not _HAS_GROUPS:
            self.running.kill()
            return
        with suppress(ProcessLookupError, PermissionError):  # the group is empty, or (macOS) holds only zombies
            os.killpg(self.running.pid, signal.SIGKILL)

    def stop(self) -> str:
        """Kill the program and what it started; return the end of what it wrote to its standard error."""
        self._kill()
        self.running.wait()
        if self.guard is not None:
            self.guard.dismiss()
        self.stderr_thread.join(timeout=_STDERR_SECONDS)
        if self.writer is not None:
            self.writer.join(timeout=_EXIT_SECONDS)
        users = (
            (self.running.stdin, self.writer),
            (self.running.stdout, None),
            (self.running.stderr, self.stderr_thread),
        )
        for pipe, thread in users:
            # a process that has left the group may hold the other end: then the thread waits, and closing would, too
            if pipe is not None and not (thread is not None and thread.is_alive()):
                with suppress(OSError, ValueError):  # unsent rows cannot be flushed any more
                    pipe.close()
        return b"".join(self.stderr_lines).decode(errors="replace").strip()[-_STDERR_SHOWN:]

    def _read_stderr(self) -> None:
        """Collect the last lines of standard error; runs in a thread until the pipe is closed."""
        with suppress(ValueError, OSError):
            while line := _open_pipe(self.running.stderr).readline(_STDERR_LINE_BYTES):
                self.stderr_lines.append(line)

    def _write(self, question: bytes) -> None:
        """Write one encoded batch to standard input; runs in a thread."""
        with suppress(OSError, ValueError):  # it died; the reader will notice
            pipe = _open_pipe(self.running.stdin)
            pipe.write(question)
            pipe.flush()

    def _check_nothing_unread(self) -> None:
        """Raise `BadAnswer` if there is more output than answers: rows and answers would no longer match."""
        if not self.unread and os.name == "posix" and select.select([_open_pipe(self.running.stdout)], [], [], 0.0)[0]:
            with suppress(_Died):  # one that has ended is noticed where its next answers are read
                self._read_more("0 answers")
        if self.unread:
            raise BadAnswer(
                f"it wrote more than one line per row: {show(bytes(self.unread[:100]))}; any other output must go to "
                "its standard error"
            )

    def _read_lines(self, m: int) -> NDArray[Any]:
        """Return the answers to m rows from m lines of JSON."""
        answers = []
        for row in range(m):
            seen = 0
            while (cut := self.unread.find(b"\n", seen)) < 0:
                seen = len(self.unread)
                self._read_more(f"{row} of {m} answers")
            answers.append(parse_json(bytes(self.unread[:cut])))
            del self.unread[: cut + 1]
        return as_rows(json_to_array(answers), m)

    def _read_binary(self, m: int) -> NDArray[Any]:
        """Return the answers to m rows from one binary answer."""
        rows, p = _HEADER.unpack(self._read_exactly(_HEADER.size))
        if rows != m or not 0 < 8 * m * p <= _MAX_ANSWER_BYTES:
            raise BadAnswer(f"the answer says {rows} rows of {p} numbers for {m} rows; expected {m} rows")
        values = np.frombuffer(self._read_exactly(8 * m * p), dtype="<f8").astype(np.float64)
        return values if p == 1 else values.reshape(m, p)

    def _read_exactly(self, count: int) -> bytes:
        """Return the next `count` bytes of standard output, waiting for them."""
        while len(self.unread) < count:
            self._read_more(f"{len(self.unread)} of {count} bytes")
        data = bytes(self.unread[:count])
        del self.unread[:count]
        return data

    def _read_more(self, got: str) -> None:
        """Append the next piece of output to `unread`; `got` says in the error what had come if the program ended."""
        output = _open_pipe(self.running.stdout)
        if _HAS_GROUPS and not select.select([output], [], [], max(0.0, self.end - time.monotonic()))[0]:
            raise _Died(f"was late after {got}")
        piece = os.read(output.fileno(), 2**16)
        if not piece:
            raise self._died(got)
        self.unread += piece
        if len(self.unread) > _MAX_ANSWER_BYTES:
            raise BadAnswer(
                f"it wrote {len(self.unread):,} bytes, too much for an answer: {show(bytes(self.unread[:100]))}"
            )

    def _died(self, got: str) -> _Died:
        """Return the `_Died` for a program whose output ended, with its exit code."""
        with suppress(subprocess.TimeoutExpired):
            self.running.wait(timeout=_EXIT_SECONDS)
        code = self.running.poll()
        how = "closed its output" if code is None else f"ended with exit code {code}"
        return _Died(f"{how} after {got}")


class _Guard:
    """A shell that kills a process group when this process has died, whatever killed it."""

    def __init__(self) -> None:
        null = subprocess.DEVNULL
        self.shell = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD], stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True, cwd="/"
        )

    def watch(self, group: int) -> None:
        """Name the process group."""
        self._say(f"{group}\n")

    def dismiss(self) -> None:
        """End the shell; it kills nothing any more."""
        self._say("\n\n")
        with suppress(OSError):
            _open_pipe(self.shell.stdin).close()
        self.shell.wait()

    def _say(self, line: str) -> None:
        with suppress(OSError):  # somebody has killed the shell
            pipe = _open_pipe(self.shell.stdin)
            pipe.write(line.encode())
            pipe.flush()


def _open_pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _stop_all(children: list[_Child]) -> None:
    """Kill the programs and empty the list."""
    while children:
        children.pop().stop()


def _lines(X: Floats) -> bytes:
    """Return the rows of X (m, d) as lines of JSON."""
    return "".join(f"{show_row(x)}\n" for x in X).encode()


def _binary(X: Floats) -> bytes:
    """Return the rows of X (m, d) in the binary form."""
    return _HEADER.pack(*X.shape) + np.ascontiguousarray(X, dtype="<f8").tobytes()
