"""Secrets of a server's headers and address: filled in when a request is sent, and hidden in whatever is shown."""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import weakref
from base64 import b64decode, b64encode
from collections.abc import Mapping
from contextlib import suppress
from html import escape
from urllib.parse import parse_qsl, quote, quote_plus, urlsplit

from ..errors import InvalidInput

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_PIECE = 8
"""Length of a piece of a secret that is hidden: shorter ones occur by chance, and reveal little."""
_SHORTEST_IN_ADDRESS, _SHORTEST_CODED = 4, 6
"""Length from which a value in an address's query, and a secret in another code, is hidden: `?n=1` is no secret."""
_SECRET = re.compile(r"auth|cookie|token|key|secret|password|credential", re.IGNORECASE)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def _forms(secret: str) -> set[str]:
    """Return the texts in which a secret may be sent back, each long enough to be told from chance."""
    escaped = {
        secret,
        json.dumps(secret)[1:-1],
        quote(secret),
        quote(secret, safe=""),
        quote_plus(secret),
        escape(secret),
    }
    escaped |= {repr(form)[1:-1] for form in escaped} | {repr(form.encode())[2:-1] for form in escaped}
    coded = set()
    for before in range(3):  # base64 of a text that contains the secret depends on where in it the secret begins
        code = b64encode(b"\0" * before + secret.encode()).decode().rstrip("=")
        inner = code[-(-8 * before // 6) : len(code) - 1]
        coded |= {inner, inner.replace("+", "-").replace("/", "_")}
    with suppress(ValueError):  # credentials of Basic authorization are base64 themselves: user:password
        plain = b64decode(secret, validate=True).decode()
        coded |= {plain, plain.partition(":")[2]} if plain.isprintable() else set()
    return escaped | {form for form in coded if len(form) >= _SHORTEST_CODED}


def without_query(word: str) -> str:
    """Return a word of a command line with asterisks in place of the query of an address, which may hold a secret."""
    if not word.startswith(("http://", "https://")) or "?" not in word:
        return word
    return f"{word.partition('?')[0]}?***"


def shown(url: str) -> str:
    """Return the address without its parts that may be secret: user, password, query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


class Headers:
    """Templates such as `{"Authorization": "Bearer ${MY_TOKEN}"}`, filled in from the environment at each request.

    Secrets live in environment variables and nowhere else: not in a repr, a log, an error or a file.
    """

    def __init__(self, templates: Mapping[str, str] | None = None, url: str = "") -> None:
        self.templates, self.url = dict(templates or {}), url
        for name, template in self.templates.items():
            if not _HEADER_NAME.fullmatch(name):
                raise InvalidInput(f"{name!r} is not a valid header name")
            if _SECRET.search(name) and not _VARIABLE.search(template):
                raise InvalidInput(
                    f"the header {name} looks like a secret, and its value was given directly; put it in an "
                    f"environment variable and name that: {{{name!r}: '${{MY_VARIABLE}}'}}"
                )
        self.filled()

    def filled(self) -> dict[str, str]:
        """Return the headers as they are sent, with the environment variables filled in."""
        return {name: self._fill(name, template) for name, template in self.templates.items()}

    def hide(self, text: str) -> str:
        """Return `text` with asterisks in place of the secrets, in case a server sends them back.

        A piece of eight characters of a secret is hidden as well: a server, or a limit on the length of a message, may
        have cut it. So are the forms of a secret in JSON, in Python's repr, in an address and in base64.
        """
        secrets = {os.environ.get(v, "").strip() for t in self.templates.values() for v in _VARIABLE.findall(t)}
        secrets |= {value for _, value in parse_qsl(urlsplit(self.url).query) if len(value) >= _SHORTEST_IN_ADDRESS}
        pieces: dict[int, set[str]] = {}
        for form in {form for secret in secrets if secret for form in _forms(secret)}:
            length = min(_PIECE, len(form))
            pieces.setdefault(length, set()).update(form[i : i + length] for i in range(len(form) - length + 1))
        hidden = bytearray(len(text))
        for length, known in pieces.items():
            for i in range(len(text) - length + 1):
                if text[i : i + length] in known:
                    hidden[i : i + length] = b"1" * length
        shown_or_not = itertools.groupby(range(len(text)), key=lambda i: bool(hidden[i]))
        return "".join("***" if secret else "".join(text[i] for i in run) for secret, run in shown_or_not)

    def _fill(self, name: str, template: str) -> str:
        """Return one header's template with its environment variables filled in."""

        def value(match: re.Match[str]) -> str:
            if match[1] not in os.environ:
                raise InvalidInput(f"the header {name} needs the environment variable {match[1]}, which is not set")
            return os.environ[match[1]]

        # a secret read from a file tends to end in a newline
        filled = _VARIABLE.sub(value, template).strip()
        if not (filled.isascii() and filled.isprintable()):
            names = ", ".join(_VARIABLE.findall(template)) or "its value"
            raise InvalidInput(f"the header {name} has a character that no header may have; check {names}")
        return filled

    def __repr__(self) -> str:
        return f"Headers({', '.join(sorted(self.templates))})"


# -- logs ----------------------------------------------------------------------------------------------------

_LOGGERS = ("httpcore.connection", "httpcore.http11", "httpcore.http2", "httpcore.proxy", "httpcore.socks")
"""Loggers of the library below, which at level DEBUG write a server's headers as they come."""


class _HideInLogs(logging.Filter):
    """Hides the secrets of all `Headers` in use in whatever is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.known: weakref.WeakSet[Headers] = weakref.WeakSet()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        for headers in list(self.known):
            text = headers.hide(text)
        record.msg, record.args = text, ()
        return True


_hide_in_logs = _HideInLogs()


def hide_in_logs(headers: Headers) -> None:
    """Hide the secrets of these headers in the logs of the library below, as long as the headers are in use."""
    _hide_in_logs.known.add(headers)
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_hide_in_logs)
