"""Secrets of a server's headers and address: filled in when a request is sent, and hidden in whatever is shown."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from ..errors import InvalidInput

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_SECRET = re.compile(r"auth|cookie|token|key|secret|password|credential", re.IGNORECASE)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


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
        """Return `text` with asterisks in place of the secrets, in case a server sends them back."""
        secrets = {os.environ.get(v, "") for t in self.templates.values() for v in _VARIABLE.findall(t)}
        for secret in sorted(secrets, key=len, reverse=True):
            if secret.strip():
                text = text.replace(secret, "***").replace(secret.strip(), "***")
        return text

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
