"""The network below `http_client`: connections whose every wait ends at a deadline, and bodies of bounded size.

A time limit on each read does not limit a request: a server that sends a byte now and then resets it for ever, in a
header, a chunk's size or a row of 1xx answers. Here each read and write waits at most until the deadline that the
calling thread has set for its request. Resolving a host's name is left to the system's own limits.
"""

from __future__ import annotations

import ssl
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.request import getproxies, proxy_bypass

import httpcore
import httpx

from ..errors import BadAnswer

_WRITTEN = 2**14
"""Bytes written at a time, so that the deadline is looked at while a long body is sent to a slow reader."""
_DECODED = 2**16
"""Largest number of bytes decoded at a time; a compressed piece can be a thousand times smaller."""
_WBITS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""zlib's parameter for each encoding that is read though it was not asked for."""


class Deadline(threading.local):
    """When the request of the calling thread must have ended, by `time.monotonic`."""

    end: float = float("inf")

    def left(self, timeout: float | None, late: type[Exception]) -> float | None:
        """Return the seconds that an operation may wait, at most `timeout`; raise `late` if there are none."""
        left = self.end - time.monotonic()
        if left <= 0:
            raise late("the time for the whole request is over")
        if left == float("inf"):
            return timeout
        return left if timeout is None else min(left, timeout)


class LimitedStream(httpcore.NetworkStream):
    """A connection whose reads and writes end at the deadline."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._stream, self._deadline = stream, deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._deadline.left(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _WRITTEN):
            left = self._deadline.left(timeout, httpcore.WriteTimeout)
            self._stream.write(buffer[start : start + _WRITTEN], left)

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        left = self._deadline.left(timeout, httpcore.ConnectTimeout)
        return LimitedStream(self._stream.start_tls(ssl_context, server_hostname, left), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class LimitedBackend(httpcore.NetworkBackend):
    """Opens connections whose reads and writes end at the deadline."""

    def __init__(self, deadline: Deadline) -> None:
        self._backend, self._deadline = httpcore.SyncBackend(), deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        left = self._deadline.left(timeout, httpcore.ConnectTimeout)
        stream = self._backend.connect_tcp(host, port, left, local_address, socket_options)
        return LimitedStream(stream, self._deadline)


def open_pool(url: str, ca: str | None, connections: int, deadline: Deadline) -> httpcore.ConnectionPool:
    """Return a pool of connections to the server of this URL, through the proxy that the environment names, if any."""
    settings: dict[str, Any] = {"max_connections": connections, "network_backend": LimitedBackend(deadline)}
    where, proxies = httpx.URL(url), getproxies()
    if ca is not None:
        settings["ssl_context"] = ssl.create_default_context(cafile=ca)
    elif where.scheme == "https":
        settings["ssl_context"] = httpx.create_ssl_context()
    named = proxies.get(where.scheme) or proxies.get("all")
    if not named or proxy_bypass(where.host):
        return httpcore.ConnectionPool(**settings)
    proxy = httpx.Proxy(named if "://" in named else f"http://{named}")
    kind = httpcore.SOCKSProxy if proxy.url.scheme.startswith("socks5") else httpcore.HTTPProxy
    return kind(_core_url(proxy.url), proxy_auth=proxy.raw_auth, **settings)


def stream(
    pool: httpcore.ConnectionPool, method: str, url: str, headers: dict[str, str], content: bytes | None, timeout: float
) -> Any:
    """Return the context in which the pool makes one request and hands out its response."""
    limits = dict.fromkeys(("connect", "read", "write", "pool"), timeout)
    return pool.stream(
        method.encode(),
        _core_url(httpx.URL(url)),
        headers=list(headers.items()),
        content=content,
        extensions={"timeout": limits},
    )


def header(response: httpcore.Response, name: str) -> str | None:
    """Return a header of the response, its repetitions joined by commas; None if it has none."""
    found = [value.decode("latin-1") for key, value in response.headers if key.lower() == name.lower().encode()]
    return ", ".join(found) if found else None


def read_body(response: httpcore.Response, most: int) -> bytes:
    """Return the decoded body; raise `BadAnswer` if it is longer than `most` bytes, sent or decoded, or encoded twice.

    Identity is asked for, but a single gzip or deflate is read, too: some servers compress whatever is asked.
    """
    named = [word.strip().lower() for word in (header(response, "Content-Encoding") or "").split(",")]
    encodings = [word for word in named if word not in ("", "identity")]
    if len(encodings) > 1 or any(word not in _WBITS for word in encodings):
        raise BadAnswer(
            f"the answer has Content-Encoding {', '.join(encodings)[:80]!r}; only a single gzip or deflate is read. "
            "Let the server send plain JSON, as it was asked to"
        )
    text, sent = bytearray(), 0
    decoder = zlib.decompressobj(_WBITS[encodings[0]]) if encodings else None
    for piece in response.iter_stream():
        sent += len(piece)
        for part in (piece,) if decoder is None else _decoded(decoder, piece):
            text += part
            if max(len(text), sent) > most:
                raise BadAnswer(f"the answer has more than {most:,} bytes; ask fewer rows at once")
    if decoder is not None and not decoder.eof:
        raise zlib.error("the compressed answer is incomplete")
    return bytes(text)


def _decoded(decoder: Any, piece: bytes) -> Iterator[bytes]:
    """Yield what a piece of a compressed body decodes to, a little at a time."""
    while piece:
        yield decoder.decompress(piece, _DECODED)
        piece = decoder.unconsumed_tail
    if decoder.unused_data:
        raise zlib.error("something follows the compressed answer")


def _core_url(url: httpx.URL) -> httpcore.URL:
    return httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
