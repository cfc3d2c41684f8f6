"""The configuration file: the settings of the command line by their long names, and the topics.

name = "shop"
retention = 86400

[topics.orders]
groups = ["billing", "mail"]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from outbox import fields
from outbox.errors import InvalidField
from projector.errors import ProjectorError
from projector.topology import Topic


class BadConfig(ProjectorError):
    """A configuration file that cannot be used."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"the configuration file {path}: {problem}")
        self.path = path


class Config(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a file may say. What it leaves out keeps its default."""

    database_url: str | None = None
    redis_url: str | None = None
    name: str | None = None
    lanes: int | None = None
    schema: str | None = None
    prefix: str | None = None
    batch: int | None = None
    lease: float | None = None
    checkpoint: float | None = None
    retention: float | None = None
    keep_at_most: float | None = None
    trim: bool | None = None
    pending_idle: float | None = None
    event_bytes: int | None = None
    http: str | None = None
    log_format: str | None = None
    topics: dict[str, Topic] = {}

    def options(self) -> dict[str, Any]:
        """Defaults of the command line, by the names of its parameters."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        found.pop("topics", None)
        return found


def load(path: Path) -> Config:
    try:
        config = msgspec.toml.decode(path.read_bytes(), type=Config)
        for topic in config.topics:
            fields.name("topics", topic)
    except (OSError, msgspec.DecodeError, InvalidField) as exc:
        raise BadConfig(path, getattr(exc, "strerror", None) or str(exc)) from exc
    return config
