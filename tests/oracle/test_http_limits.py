"""Servers that keep a client waiting, or fill its memory: limits of time, memory and requests hold."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
import zlib
from email.utils import formatdate

import numpy as np
import pytest

import ridgescope as rs
from raw_server import says, serving

pytest.importorskip("httpx")
pytest.importorskip("stamina")

LIMIT = 0.6
"""Seconds that a request and its repetitions have in these tests."""
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
GOOD = json.dumps({"predictions": [1.0, 2.0]}).encode()


def drip(first, piece, pause=0.02):
    """Send `first`, and then `piece` again and again, never silent for long and never done."""

    def reply(connection, ended):
        connection.sendall(first)
        while not ended.wait(pause):
            connection.sendall(piece)

    return reply


SLOW = {
    "status line": drip(b"", b"H"),
    "header bytes": drip(HEAD + b"X-Long: ", b"x"),
    "header lines": drip(HEAD, b"X-More: y\r\n"),
    "chunk size": drip(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"0"),
    "chunk extension": drip(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;a=", b"b"),
    "trailers": drip(HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: ", b"b"),
    "body": drip(HEAD + b"Content-Length: 1000000\r\n\r\n", b" "),
    "gzip name": drip(HEAD + b"Content-Encoding: gzip\r\n\r\n\x1f\x8b\x08\x08\0\0\0\0\0\xff", b"n"),
    "100 Continue": drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "slow 100 Continue": drip(b"HTTP/1.1 100 Cont", b"i"),
    "103 Early Hints": drip(b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"),
    "fast 103": drip(b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 500, pause=0.0),
}


@pytest.mark.parametrize("form", SLOW)
def test_the_time_limit_holds_however_the_answer_is_drawn_out(form):
    problems = []

    def run():
        try:
            ask(np.zeros((2, 2)))
        except rs.RidgescopeError as problem:
            problems.append(type(problem))

    with serving(SLOW[form]) as server:
        ask = rs.oracle.http(server.url, dim=2, timeout=LIMIT, patience=LIMIT)
        asking = threading.Thread(target=run, daemon=True)  # a thread that can be left behind where the limit fails
        asking.start()
        asking.join(2.0 * LIMIT + 0.5)
        assert problems == [rs.OracleFailed]


def test_a_connection_is_used_again_and_its_limit_starts_anew():
    """The time limit is that of a request, not of the connection."""

    def late(connection, ended):
        ended.wait(0.3)
        says(GOOD)(connection, ended)

    with serving(late) as server:
        ask = rs.oracle.http(server.url, dim=2, timeout=LIMIT, patience=LIMIT)
        for _ in range(4):
            np.testing.assert_array_equal(ask(np.zeros((2, 2)))[:, 0], [1.0, 2.0])


# -- memory --------------------------------------------------------------------------------------------------

ASK = """
import resource, sys, time
import numpy as np
import ridgescope as rs

ask = rs.oracle.http(sys.argv[1], dim=2, timeout=20, patience=20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))
try:
    ask(np.zeros((2, 2)))
except rs.RidgescopeError as problem:
    print(type(problem).__name__, str(problem)[:200].replace("\\n", " "))
except BaseException as problem:
    print("unexpected", type(problem).__name__)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def grown(reply):
    """Return the error that a client in a process of its own ends with, and by how many MB it grew."""
    with serving(reply) as server:
        done = subprocess.run([sys.executable, "-c", ASK, server.url], capture_output=True, text=True, timeout=60)
    error, kilobytes = done.stdout.strip().splitlines()[-2:]
    return error, int(kilobytes) / 1024


def bomb(layers):
    """Zeros compressed `layers` times: a few kB that decode to gigabytes."""
    zeros = zlib.compressobj(wbits=31)
    content = b"".join(zeros.compress(bytes(2**24)) for _ in range(20)) + zeros.flush()
    for _ in range(layers - 1):
        content = gzip.compress(content)
    return content


@pytest.mark.parametrize("encodings", [b"gzip", b"gzip, gzip", b"deflate, gzip", b"br"])
def test_a_small_answer_does_not_become_gigabytes(encodings):
    content = bomb(encodings.count(b"gzip") or 1)
    error, megabytes = grown(says(content, b"Content-Encoding: " + encodings + b"\r\n"))
    assert error.startswith("BadAnswer"), error
    assert megabytes < 400


@pytest.mark.parametrize("text", [b"[" * 900, b"[],", b"{},", b'{"a":[]},'], ids=["deep", "lists", "objects", "both"])
def test_lists_in_lists_do_not_take_forty_times_their_size(text):

    if text[:2] == b"[[":
        content = b'{"predictions": [' + b",".join([text + b"]" * len(text)] * 8000) + b"]}"
    else:
        content = b'{"predictions": [' + text * (12_000_000 // len(text)) + b"0]}"
    error, megabytes = grown(says(content))
    assert error.startswith("BadAnswer"), error
    assert megabytes < 12 * len(content) / 2**20


def test_identity_is_asked_for_and_a_single_gzip_is_read_all_the_same():
    with serving(says(gzip.compress(GOOD), b"Content-Encoding: gzip\r\n")) as server:
        ask = rs.oracle.http(server.url, dim=2)
        np.testing.assert_array_equal(ask(np.zeros((2, 2)))[:, 0], [1.0, 2.0])
        assert b"accept-encoding: identity\r\n" in server.requests[0].lower()


# -- requests ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["0", formatdate(0, usegmt=True)], ids=["zero", "a past date"])
def test_a_server_that_asks_for_no_pause_gets_one(header):
    """Pauses grow from 0.1 s to a tenth of the patience, here 0.15 s: not more than fifteen tries in it."""
    reply = says(b"busy", f"Retry-After: {header}\r\n".encode(), b"503 Busy")
    with serving(reply) as server:
        with pytest.raises(rs.OracleFailed, match="status 503"):
            rs.oracle.http(server.url, dim=2, patience=1.5)(np.zeros((2, 2)))
        assert 3 <= len(server.requests) <= 16


# -- numbers that are not of their type ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("datatype", "data", "shown"),
    [
        ("INT8", [1, 300], "300"),
        ("INT8", [1, -129], "-129"),
        ("UINT8", [1, -1], "-1"),
        ("INT32", [1, 2**31], "2147483648"),
        ("INT64", [1, 2**63], "9223372036854775808"),
        ("UINT64", [1, 2**64], "18446744073709551616"),
        ("INT64", [1, 1e300], r"1e\+300"),
        ("INT32", [1, 2.5], r"2\.5"),
        ("BOOL", [1, 2], "2"),
    ],
)
def test_a_number_that_its_type_cannot_hold_is_an_error(datatype, data, shown):
    answer = {"outputs": [{"name": "y", "datatype": datatype, "shape": [2], "data": data}]}
    with serving(says(json.dumps(answer).encode())) as server:
        ask = rs.oracle.http(f"{server.url}/v2/models/m", input_name="x", datatype="FP64", dim=2)
        with pytest.raises(rs.BadAnswer, match=rf"'y'.*{datatype}.*{shown}"):
            ask(np.zeros((2, 2)))


@pytest.mark.parametrize("datatype", ["INT8", "UINT64", "INT64", "BOOL"])
def test_whole_numbers_of_their_type_are_read(datatype):
    data = {"INT8": [-128, 127], "UINT64": [0, 2**64 - 1], "INT64": [-(2**63), 2**63 - 1], "BOOL": [True, False]}
    answer = {"outputs": [{"name": "y", "datatype": datatype, "shape": [2], "data": data[datatype]}]}
    with serving(says(json.dumps(answer).encode())) as server:
        ask = rs.oracle.http(f"{server.url}/v2/models/m", input_name="x", datatype="FP64", dim=2)
        np.testing.assert_array_equal(ask(np.zeros((2, 2)))[:, 0], np.array(data[datatype], dtype=np.float64))
