"""A server that speaks the protocol, and one that misbehaves in every way a server can."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import ssl
import threading
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ridgescope as rs
from ridgescope.oracle.answers import parse_json
from ridgescope.oracle.http import OpenInference, PlainJson
from ridgescope.oracle.http_client import Pacing, seconds_to_wait
from ridgescope.oracle.http_secrets import Headers

httpx = pytest.importorskip("httpx")
pytest.importorskip("stamina")


def rows(count=10, dim=3, seed=0):
    return np.random.default_rng(seed).standard_normal((count, dim))


class Server(ThreadingHTTPServer):
    """Answers by the next of its `replies`, functions of (request, body); the last one for ever after."""

    daemon_threads = True

    def __init__(self, replies):
        super().__init__(("127.0.0.1", 0), Handler)
        self.replies, self.seen, self.times, self.lock = list(replies), [], [], threading.Lock()
        self.released = threading.Event()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        """A client that has given up is no news."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.seen.append((self.path, dict(self.headers), body))
            self.server.times.append(time.monotonic())
            replies = self.server.replies
            reply = replies.pop(0) if len(replies) > 1 else replies[0]
        reply(self, body)

    def do_GET(self):
        self.send(200, self.server.metadata)

    def send(self, status, value, headers=(), length=None):
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in headers:
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(data) if length is None else length))
        self.end_headers()
        self.wfile.write(data)


def sums(request, body):
    request.send(200, {"predictions": [sum(x) for x in body["instances"]]})


def says(status, value="", headers=()):
    return lambda request, body: request.send(status, value, headers)


def half(request, body):
    request.send(200, b'{"predictions": [1.0, ', length=5000)
    request.close_connection = True


def hang_up(request, body):
    request.close_connection = True
    request.connection.close()


def slow(request, body):
    request.server.released.wait(10)


def trickle(request, body):
    """A byte at a time: never silent for long, and never done."""
    request.send_response(200)
    request.send_header("Content-Length", "1000000")
    request.end_headers()
    while not request.server.released.wait(0.02):
        request.wfile.write(b" ")


@contextmanager
def serving(*replies, metadata=None):
    server = Server(replies)
    server.metadata = metadata or {}
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(autouse=True)
def hurried(request, monkeypatch):
    """Pauses between tries are cut short; Retry-After is not."""
    import stamina

    real = stamina.retry_context
    monkeypatch.setattr(
        stamina,
        "retry_context",
        lambda **k: real(**{**k, "wait_initial": 0.001, "wait_max": 0.01, "wait_jitter": 0.01}),
    )


# -- good servers --------------------------------------------------------------------------------------------


def test_rows_go_out_and_answers_come_back_in_order():
    with serving(sums) as server:
        ask = rs.oracle.http(server.url, dim=3, rows=4, concurrency=3)
        np.testing.assert_array_equal(ask(rows(50))[:, 0], [sum(x) for x in rows(50).tolist()])
        assert len(server.seen) == 13
        assert sum(len(body["instances"]) for _, _, body in server.seen) == 50


def test_fields_have_the_names_that_are_asked_for():
    def nested(request, body):
        request.send(200, {"result": {"y": [[sum(x), x[0]] for x in body["data"]["x"]]}})

    with serving(nested) as server:
        ask = rs.oracle.http(f"{server.url}/run", dim=3, request="data.x", response="result.y", extra={"seed": 1})
        assert ask(rows()).shape == (10, 2)
        path, _, body = server.seen[0]
        assert (path, body["seed"]) == ("/run", 1)
    with serving(lambda request, body: request.send(200, [x[0] for x in body])) as server:
        bare = rs.oracle.http(server.url, dim=3, request=None, response=None)
        np.testing.assert_array_equal(bare(rows())[:, 0], rows()[:, 0])


def infer(request, body):
    (tensor,) = body["inputs"]
    data = np.array(tensor["data"]).reshape(tensor["shape"])
    y = {"name": "y", "shape": [len(data), 2], "datatype": "FP32", "data": (data[:, :2] * 2).ravel().tolist()}
    request.send(200, {"model_name": "m", "outputs": [y]})


METADATA = {"name": "m", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}], "outputs": []}


@pytest.mark.parametrize("form", ["{}/v2/models/m", "{}/v2/models/m/infer", "{}"])
def test_the_open_inference_protocol_is_spoken(form):
    with serving(infer, metadata=METADATA) as server:
        ask = rs.oracle.http(form.format(server.url), model="m" if form == "{}" else None)
        assert ask.dim == 3
        np.testing.assert_allclose(ask(rows()), 2 * rows()[:, :2], rtol=1e-6)
        assert ask.rounding == np.finfo(np.float32).eps
        path, _, body = server.seen[0]
        assert path == "/v2/models/m/infer"
        assert (body["inputs"][0]["name"], body["inputs"][0]["datatype"]) == ("x", "FP32")


def test_a_server_that_says_little_needs_dim():
    with serving(infer, metadata={"name": "m", "inputs": []}) as server:
        with pytest.raises(rs.InvalidInput, match=r"/v2/models/m does not say how many coordinates.*dim="):
            rs.oracle.http(f"{server.url}/v2/models/m")
        ask = rs.oracle.http(f"{server.url}/v2/models/m", dim=3)
        np.testing.assert_allclose(ask(rows()), 2 * rows()[:, :2], rtol=1e-6)
        assert server.seen[0][2]["inputs"][0]["datatype"] == "FP64"


# -- bad servers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trouble",
    [says(408), says(429), says(500, "oops"), says(502), says(503), half, hang_up, says(200, b'{"predictions": [1')],
    ids=["408", "429", "500", "502", "503", "half", "hang up", "cut JSON"],
)
def test_what_may_pass_is_asked_again(trouble):
    with serving(trouble, trouble, sums) as server:
        ask = rs.oracle.http(server.url, dim=3)
        np.testing.assert_allclose(ask(rows())[:, 0], rows().sum(axis=1))
        assert len(server.seen) == 3


@pytest.mark.parametrize("trouble", [slow, trickle])
def test_a_slow_server_has_its_time_and_no_more(trouble):
    with serving(trouble, sums) as server:
        ask = rs.oracle.http(server.url, dim=3, timeout=0.1)
        np.testing.assert_allclose(ask(rows())[:, 0], rows().sum(axis=1))
        assert len(server.seen) == 2


def test_patience_ends():
    with serving(says(503, "come back later")) as server:
        ask = rs.oracle.http(server.url, dim=3, patience=0.2)
        with pytest.raises(rs.OracleFailed, match=r"status 503: .*come back later.*patience=0\.2 s.*raise timeout"):
            ask(rows())
        assert len(server.seen) > 1


def test_retry_after_is_waited_for():
    with serving(says(429, "", [("Retry-After", "1")]), sums) as server:
        rs.oracle.http(server.url, dim=3)(rows())
        assert server.times[1] - server.times[0] >= 1.0


def test_a_pause_longer_than_the_patience_is_not_begun():
    with serving(says(429, "", [("Retry-After", "3600")])) as server:
        with pytest.raises(rs.OracleFailed, match=r"status 429, asking for a pause of 3600 s"):
            rs.oracle.http(server.url, dim=3)(rows())
        assert len(server.seen) == 1


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 413, 422])
def test_what_will_not_pass_is_not_asked_again(status):
    with serving(says(status, {"error": "no such thing"}, [("Location", "http://elsewhere.invalid/")])) as server:
        with pytest.raises(rs.OracleFailed, match=rf"status {status}: .*no such thing.*Check the address"):
            rs.oracle.http(server.url, dim=3)(rows())
        assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"predictions": [1.0] * 9}, r"shape \(9,\) for 10 rows"),
        ({"predictions": 1.0}, r"shape \(\) for 10 rows"),
        ({"predictions": ["high"] * 10}, "not an array of numbers"),
        ({"predictions": ["1.5"] * 10}, "not an array of numbers"),
        ({"predictions": [[1.0], [1.0, 2.0]] * 5}, "not an array of numbers"),
        ({"scores": [1.0] * 10}, r"no field 'predictions', it has the fields \['scores'\]; pass response="),
        ([1.0] * 10, "no field 'predictions'"),
        ({"predictions": [1.0] * 9 + [None]}, "answered nan at input row"),
        (b'{"predictions": [0, 0, 0, 0, 0, 0, 0, 0, 0, NaN]}', "answered nan at input row"),
        (b'{"predictions": [0, 0, 0, 0, 0, 0, 0, 0, 0, 1e999]}', "answered inf at input row"),
    ],
)
def test_wrong_answers_are_shown_and_not_asked_again(value, message):
    with serving(says(200, value)) as server:
        with pytest.raises(rs.BadAnswer, match=message):
            rs.oracle.http(server.url, dim=3)(rows())
        assert len(server.seen) == 1


def test_not_a_number_may_be_dropped():
    with serving(says(200, {"predictions": [1.0] * 9 + [None]})) as server:
        ask = rs.oracle.http(server.url, dim=3, on_bad="drop")
        assert np.isnan(ask(rows())).sum() == ask.dropped == 1


def test_nobody_there(monkeypatch):
    with serving(sums) as server:
        url = server.url
    monkeypatch.setattr("ridgescope.oracle.http_client._FIRST_CONTACT_SECONDS", 0.1)
    with pytest.raises(rs.OracleFailed, match="ConnectError"):
        rs.oracle.http(url, dim=3)(rows())


def test_a_server_that_cannot_prove_who_it_is_is_not_asked(tmp_path):
    """A certificate that nobody signed but itself: refused, unless it is the authority that was named."""
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with serving(sums) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        url = f"https://127.0.0.1:{server.server_port}"
        with pytest.raises(
            rs.OracleFailed, match=r"has a certificate that cannot be verified .*CERTIFICATE_VERIFY_FAILED.*ca="
        ):
            rs.oracle.http(url, dim=3)(rows())
        (tmp_path / "empty.pem").write_text("nothing")
        with pytest.raises(rs.InvalidInput, match=r"empty\.pem holds no certificates"):
            rs.oracle.http(url, dim=3, ca=tmp_path / "empty.pem")
        ask = rs.oracle.http(url, dim=3, ca=tmp_path / "ca.pem")
        np.testing.assert_allclose(ask(rows())[:, 0], rows().sum(axis=1))


# -- secrets -------------------------------------------------------------------------------------------------


def test_a_secret_is_sent_and_shown_nowhere(monkeypatch, caplog):
    secret = "hush-4711-do-not-tell"
    monkeypatch.setenv("MY_TOKEN", f"{secret}\n")
    caplog.set_level(logging.DEBUG)

    def echo(request, body):
        request.send(400, {"error": f"bad token {request.headers['Authorization']}"})

    def echo_in_answer(request, body):
        request.send(200, {"predictions": [request.headers["Authorization"]]})

    def echo_and_fail(request, body):
        request.send(500, {"error": f"{request.headers['Authorization']}"})

    for reply in (echo, echo_in_answer, echo_and_fail):
        with serving(reply) as server:
            headers = {"Authorization": "Bearer ${MY_TOKEN}", "X-Team": "blue"}
            ask = rs.oracle.http(f"{server.url}/?q=1", dim=3, headers=headers, patience=0.1)
            with pytest.raises(rs.RidgescopeError) as caught:
                ask(rows())
            assert server.seen[0][1]["Authorization"] == f"Bearer {secret}"
            assert server.seen[0][1]["X-Team"] == "blue"
        texts = [str(caught.value), repr(caught.value), repr(ask.function), repr(vars(ask.function)), str(vars(ask))]
        texts += [repr(ask.function.client), repr(vars(ask.function.client)), pickle.dumps(ask).decode("latin-1")]
        texts += [repr(record.__dict__) for record in caplog.records]
        assert not any(secret in text for text in texts)
        assert "***" in str(caught.value)


def test_secrets_in_the_open_are_refused(monkeypatch):
    with pytest.raises(rs.InvalidInput, match=r"Authorization looks like a secret.*environment variable") as caught:
        rs.oracle.http("https://host.invalid", dim=3, headers={"Authorization": "Bearer abc"})
    assert "abc" not in str(caught.value)
    with pytest.raises(rs.InvalidInput, match="user or password in it") as caught:
        rs.oracle.http("https://me:abc@host.invalid", dim=3)
    assert "abc" not in str(caught.value)
    monkeypatch.delenv("NO_SUCH", raising=False)
    with pytest.raises(rs.InvalidInput, match="needs the environment variable NO_SUCH, which is not set"):
        rs.oracle.http("https://host.invalid", dim=3, headers={"X-Api-Key": "${NO_SUCH}"})
    monkeypatch.setenv("STRANGE", "abc\ndef")
    with pytest.raises(rs.InvalidInput, match="character that no header may have; check STRANGE") as caught:
        rs.oracle.http("https://host.invalid", dim=3, headers={"X-Api-Key": "${STRANGE}"})
    assert "abc" not in str(caught.value)
    with pytest.raises(rs.InvalidInput, match="is not a valid header name"):
        Headers({"a: b\r\n": "x"})


def test_a_copy_and_a_pickle_ask_too(monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "x")
    with serving(sums) as server:
        ask = rs.oracle.http(server.url, dim=3, headers={"X-Token": "${MY_TOKEN}"}, rate=1000.0)
        for other in (copy.copy(ask), pickle.loads(pickle.dumps(ask))):
            np.testing.assert_array_equal(other(rows()), ask(rows()))


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("ftp://host", {}, "url must look like https://host/path, not 'ftp://host'"),
        ("http:///path", {}, "url must look like"),
        ("http://host", {"timeout": 0}, "timeout must be a positive number, not 0"),
        ("http://host", {"rate": -1.0}, r"rate must be a positive number, not -1\.0"),
        ("http://host", {"rows": 0}, "rows and concurrency must be at least 1; got 0 and 4"),
        ("http://host", {"ca": "none.pem"}, "ca must be a file of certificates; there is none at none.pem"),
        ("http://host", {"dim": None}, "dim is missing"),
        ("http://host/v2/models/m?key=1", {}, "must have no query string; remove what follows http://host/v2/models/m"),
        (
            "http://host/v2/models/m",
            {"input_name": "x", "datatype": "INT8"},
            "datatype must be FP64, FP32 or FP16, not 'INT8'",
        ),
    ],
)
def test_options_that_cannot_be_used_are_named(url, options, message):
    with pytest.raises(rs.InvalidInput, match=message):
        rs.oracle.http(url, **{"dim": 3, **options})


# -- parts ---------------------------------------------------------------------------------------------------


def test_requests_start_no_closer_than_the_rate_allows():
    now, slept = [0.0], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    pacing = Pacing(4.0, clock=lambda: now[0], sleep=sleep)
    for _ in range(5):
        pacing.wait()
    assert now[0] == 1.0
    pacing.pause(10.0)
    pacing.wait()
    assert (now[0], len(slept)) == (11.0, 5)
    free = Pacing(None, clock=lambda: now[0], sleep=sleep)
    free.wait()
    free.wait()
    assert now[0] == 11.0


def test_retry_after_in_all_its_forms():
    now = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
    assert seconds_to_wait("7") == 7.0
    assert seconds_to_wait(" 0 ") == 0.0
    assert seconds_to_wait("Thu, 01 Jan 2026 12:01:30 GMT", now) == 90.0
    assert seconds_to_wait("Thu, 01 Jan 2026 11:00:00 GMT", now) == 0.0
    assert [seconds_to_wait(h) for h in (None, "", "soon", "-3", "1.5", "²")] == [None] * 6


jsonable = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
tensors = st.fixed_dictionaries(
    {"name": st.just("y"), "shape": jsonable, "datatype": st.sampled_from(["FP32", "INT8", "BYTES"]) | jsonable},
    optional={"data": st.lists(st.floats() | st.none() | st.integers(), max_size=6) | jsonable},
)


@given(answer=jsonable | st.fixed_dictionaries({"predictions": jsonable}), m=st.integers(1, 4))
def test_any_plain_answer_is_rows_or_refused(answer, m):
    with suppress(rs.BadAnswer):
        assert len(PlainJson().decode(answer, m)) == m


@given(answer=jsonable | st.fixed_dictionaries({"outputs": st.lists(tensors, max_size=2)}), m=st.integers(1, 4))
def test_any_protocol_answer_is_rows_or_refused(answer, m):
    with suppress(rs.BadAnswer):
        assert len(OpenInference().decode(answer, m)) == m


@given(text=st.binary(max_size=40) | st.just(b"[" * 100_000))
def test_any_bytes_are_json_or_refused(text):
    with suppress(rs.BadAnswer):
        parse_json(text)
