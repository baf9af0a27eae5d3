"""A server that sends secrets back, in any form: none is shown in a message, a log, a result or a report."""

from __future__ import annotations

import base64
import json
import logging
import subprocess
import sys

import numpy as np
import pytest

import ridgescope as rs
from raw_server import says, serving
from ridgescope.oracle.http_secrets import Headers

TOKENS = ["hush-4711-do-not-tell", 'qu"ote-and\\back/slash+"', "it's-a-'token'", "x" * 150 + "-4711-" + "y" * 150]


def echo(how, status):
    """Reply with what `how` makes of the header X-Key of the request, or of its address."""

    def reply(connection, ended):
        text = reply.server.requests[-1].decode()
        key = next(line.partition(":")[2].strip() for line in text.splitlines() if line.lower().startswith("x-key"))
        content = how(key).encode()
        says(content, b"X-Echo: " + key.encode() + b"\r\n", status)(connection, ended)

    return reply


HOW = {
    "plain": lambda key: f"no such key: {key}",
    "json": lambda key: json.dumps({"error": {"key": key}}),
    "json in json": lambda key: json.dumps({"error": json.dumps({"key": key})}),
    "base64": lambda key: base64.b64encode(f"user:{key}!".encode()).decode(),
    "urlsafe": lambda key: "ab" + base64.urlsafe_b64encode(f"a{key}".encode()).decode(),
    "cut by the server": lambda key: f"no such key: {key[:12]}...",
    "at our limit": lambda key: "." * 290 + key,
    "at the limit of JSON": lambda key: "." * 190 + key,
    "at the limit of an answer": lambda key: json.dumps({"predictions": "." * 388 + key}),
}


def leaked(secret, texts):
    """Return the texts that show eight characters of the secret, plain or as base64 of any alignment."""
    codes = [base64.b64encode(b"." * k + secret.encode()).decode()[4:-4] for k in range(3)]
    pieces = {code[i : i + 8] for code in [secret, *codes] for i in range(max(1, len(code) - 7))}
    return [text for text in texts if any(piece in text for piece in pieces)]


CASES = [*((how, status) for how in HOW for status in (b"200 OK", b"400 Bad")), ("json", b"503 Busy")]


@pytest.mark.parametrize(("how", "status"), CASES)
@pytest.mark.parametrize("token", TOKENS, ids=["plain", "escapes", "quotes", "long"])
def test_a_secret_sent_back_is_hidden(monkeypatch, caplog, token, how, status):
    monkeypatch.setenv("MY_KEY", token)
    caplog.set_level(logging.DEBUG)
    reply = echo(HOW[how], status)
    with serving(reply) as server:
        reply.server = server
        ask = rs.oracle.http(server.url, dim=2, headers={"X-Key": "${MY_KEY}"}, patience=0.3)
        with pytest.raises(rs.RidgescopeError) as caught:
            ask(np.zeros((2, 2)))
        assert any(token in request.decode() for request in server.requests)
    texts = [str(caught.value), repr(caught.value), *(record.getMessage() for record in caplog.records)]
    assert not leaked(token, texts)


@pytest.mark.parametrize("status", [b"400 Bad", b"200 OK"])
def test_a_secret_in_the_address_is_hidden(caplog, status):
    caplog.set_level(logging.DEBUG)
    secret = "hush-4711-do-not-tell"
    with serving(says(f"wrong key {secret}".encode(), b"", status)) as server:
        ask = rs.oracle.http(f"{server.url}/run?api_key={secret}&n=1", dim=2, patience=0.3)
        with pytest.raises(rs.OracleFailed) as caught:
            ask(np.zeros((2, 2)))
        assert secret in server.requests[0].decode()
    texts = [str(caught.value), repr(ask.function), *(record.getMessage() for record in caplog.records)]
    assert not leaked(secret, texts)


def test_a_secret_in_the_address_is_in_no_result_or_report(tmp_path):
    secret = "hush-4711-do-not-tell"

    def products(connection, ended):
        body = json.loads(server.requests[-1].partition(b"\r\n\r\n")[2])
        says(json.dumps({"predictions": [np.tanh(x[0]) for x in body["instances"]]}).encode())(connection, ended)

    with serving(products) as server:
        url = f"{server.url}/run?api_key={secret}"
        command = [sys.executable, "-m", "ridgescope", "extract", url, "--dim", "2", "--radius", "1"]
        command += ["--out", "out", "--report", "page.html", "--ledger", "a.ledger", "--verbose"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    written = [path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) >= 4
    assert not leaked(secret, [done.stdout, done.stderr, *written])
    assert "/run?***" in rs.load(tmp_path / "out").command


def test_what_is_no_secret_is_shown(monkeypatch):
    monkeypatch.setenv("MY_KEY", "hush-4711-do-not-tell")
    hide = Headers({"X-Key": "Bearer ${MY_KEY}"}, "https://host/?n=1&rows=20").hide
    assert hide("status 401: Bearer token of 21 characters is unknown") == (
        "status 401: Bearer token of 21 characters is unknown"
    )
    assert hide("<hush-4711-do-not-tell>") == "<***>"
    monkeypatch.setenv("MY_KEY", base64.b64encode(b"user:open sesame").decode())
    assert hide("no password 'open sesame'") == "no password '***'"
