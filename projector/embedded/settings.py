"""Server settings, as given in Python and as the servers' configuration files want them."""

import re
from collections.abc import Mapping

from projector.embedded.errors import EmbeddedError

Settings = Mapping[str, str | int]

EMPTY = '""'
NAME = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)


def merged(defaults: Settings, settings: Settings | None, ours: frozenset[str]) -> Settings:
    """Names in lower case, so that one setting cannot appear twice. Those in `ours` decide
    where the server is found and who gets in, and cannot be changed."""
    own = {name.lower(): value for name, value in (settings or {}).items()}
    if fixed := sorted(ours & own.keys()):
        raise EmbeddedError(
            f"the settings {', '.join(fixed)} of an embedded server are fixed: leave them out"
        )
    for name, value in own.items():
        _check(name, str(value))
    return {**defaults, **own}


def _check(name: str, value: str) -> None:
    if not NAME.fullmatch(name):
        raise EmbeddedError(f"{name!r} is no name of a server setting")
    if re.search(r"[\r\n\0]", value):
        raise EmbeddedError(f"the value of setting {name} must be one line, not {value!r}")


def postgres_line(name: str, value: str | int) -> str:
    text = {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
    quoted = text.replace("\\", "\\\\").replace("'", "''")
    return f"{name} = '{quoted}'\n"


def valkey_line(name: str, value: str | int) -> str:
    """Unquoted, because several words are several arguments."""
    text = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
    return f"{name} {text or EMPTY}\n"
