"""Options that several commands share: flags, or environment variables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outbox import Outbox
from outbox.errors import InvalidField


def _defaults_from(context: typer.Context, path: Path | None) -> Path | None:
    """What the file says comes after flags and environment variables, and before the defaults."""
    from projector.config import load

    if path is not None:
        context.default_map = {**load(path).options(), **(context.default_map or {})}
    return path


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar="PROJECTOR_CONFIG",
        metavar="FILE",
        help="TOML with the same options by their long names, and [topics.*].",
        is_eager=True,
        callback=_defaults_from,
        show_default=False,
    ),
]
DatabaseUrl = Annotated[
    str,
    typer.Option(
        "--database-url",
        envvar="PROJECTOR_DATABASE_URL",
        metavar="URL",
        help="PostgreSQL or SQLite; a bare postgresql:// uses asyncpg.",
        show_default=False,
    ),
]
RedisUrl = Annotated[
    str,
    typer.Option(
        "--redis-url",
        envvar="PROJECTOR_REDIS_URL",
        metavar="URL",
        help="redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://.",
        show_default=False,
    ),
]
Name = Annotated[
    str,
    typer.Option(
        "--name",
        envvar="PROJECTOR_NAME",
        metavar="NAME",
        help="The outbox's name, as in Outbox(name=…).",
        show_default=False,
    ),
]
Lanes = Annotated[
    int,
    typer.Option(
        "--lanes",
        envvar="PROJECTOR_LANES",
        min=1,
        max=32767,
        help="The number of lanes, as in Outbox(lanes=…).",
    ),
]
Schema = Annotated[
    str | None,
    typer.Option(
        "--schema",
        envvar="PROJECTOR_SCHEMA",
        metavar="SCHEMA",
        help="The schema of the tables; without it, the connection's own.",
        show_default=False,
    ),
]
Prefix = Annotated[
    str,
    typer.Option(
        "--prefix",
        envvar="PROJECTOR_PREFIX",
        metavar="PREFIX",
        help="What stands before each table's name.",
        show_default=False,
    ),
]


def outbox_of(name: str, lanes: int, schema: str | None, prefix: str) -> Outbox:
    try:
        return Outbox(name=name, lanes=lanes, schema=schema or None, prefix=prefix)
    except InvalidField as exc:
        raise typer.BadParameter(exc.problem, param_hint=f"--{exc.field}") from exc
