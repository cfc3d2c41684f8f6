"""`projector status`: how the relay is doing, told from the outside."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from projector.cli import options
from projector.cli.place import Place, placed

if TYPE_CHECKING:
    from outbox import Outbox
    from projector.status.report import Status

SECOND = 1.0
CLEAR = "\x1b[2J\x1b[H"


@placed
def status(
    place: Place,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, for machines.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again every second, until Ctrl-C.")
    ] = False,
) -> None:
    """Show backlog, leases, streams, groups, and what holds the database's horizon back.

    Reads only. A server that is away is shown as such; exit code 1 if that is the database.
    """
    # the lanes are the database's
    outbox = options.outbox_of(place.name, 8, place.schema, place.prefix)
    try:
        found = asyncio.run(_look(place.database_url, place.redis_url, outbox, as_json, watch))
    except KeyboardInterrupt:
        return  # how watching ends
    if found.database_problem:
        raise typer.Exit(1)


async def _look(
    database_url: str, redis_url: str, outbox: Outbox, as_json: bool, watch: bool
) -> Status:
    from projector.connect import engine_of, redis_of
    from projector.status import gather

    engine, redis = engine_of(database_url), redis_of(redis_url)
    try:
        while True:
            found = await gather(engine, redis, outbox)
            _show(found, as_json, clear=watch and sys.stdout.isatty())
            if not watch:
                return found
            await asyncio.sleep(SECOND)
    finally:
        await redis.aclose()
        await engine.dispose()


def _show(found: Status, as_json: bool, clear: bool) -> None:
    from projector.status.report import plain
    from projector.status.text import render

    if as_json:
        typer.echo(json.dumps(plain(found), ensure_ascii=False))
    else:
        typer.echo((CLEAR if clear else "") + render(found), nl=False)
