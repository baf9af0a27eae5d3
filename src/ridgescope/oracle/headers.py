"""Headers whose secrets live in environment variables, and nowhere else: not in a repr, a log, an error, a file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from ..errors import InvalidInput

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_SECRET = re.compile(r"auth|cookie|token|key|secret|password|credential", re.IGNORECASE)


class Headers:
    """Templates such as `{"Authorization": "Bearer ${MY_TOKEN}"}`, filled in at each request."""

    def __init__(self, templates: Mapping[str, str] | None = None) -> None:
        self.templates = dict(templates or {})
        for name, template in self.templates.items():
            if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
                raise InvalidInput(f"{name!r} is no name for a header")
            if _SECRET.search(name) and not _VARIABLE.search(template):
                raise InvalidInput(
                    f"the header {name} looks like a secret, and its value was given as it is; put it in an "
                    f"environment variable and name that: {{{name!r}: '${{MY_VARIABLE}}'}}"
                )
        self.filled()

    def filled(self) -> dict[str, str]:
        """The headers as they are sent."""
        return {name: self._fill(name, template) for name, template in self.templates.items()}

    def hide(self, text: str) -> str:
        """`text` without the secrets, should a server send them back."""
        secrets = {os.environ.get(v, "") for t in self.templates.values() for v in _VARIABLE.findall(t)}
        for secret in sorted(secrets, key=len, reverse=True):
            if secret.strip():
                text = text.replace(secret, "***").replace(secret.strip(), "***")
        return text

    def _fill(self, name: str, template: str) -> str:
        def value(match: re.Match[str]) -> str:
            if match[1] not in os.environ:
                raise InvalidInput(f"the header {name} needs the environment variable {match[1]}, which is not set")
            return os.environ[match[1]]

        # a secret read from a file tends to end in a newline
        filled = _VARIABLE.sub(value, template).strip()
        if not (filled.isascii() and filled.isprintable()):
            names = ", ".join(_VARIABLE.findall(template)) or "its value"
            raise InvalidInput(f"the header {name} has a character that no header may have; look at {names}")
        return filled

    def __repr__(self) -> str:
        return f"Headers({', '.join(sorted(self.templates))})"
