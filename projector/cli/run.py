"""`projector run`: the relay, until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import TYPE_CHECKING, Annotated

import typer

from projector.cli import options

if TYPE_CHECKING:
    from projector.settings import Settings


def run(
    database_url: options.DatabaseUrl,
    redis_url: options.RedisUrl,
    name: options.Name,
    lanes: options.Lanes = 8,
    schema: options.Schema = None,
    prefix: options.Prefix = "",
    batch: Annotated[int, typer.Option("--batch", min=1, help="Events published at once.")] = 1000,
    lease: Annotated[float, typer.Option("--lease", help="Seconds a lane is held for.")] = 10,
    once: Annotated[
        bool, typer.Option("--once", help="Publish what is committed now, then exit.")
    ] = False,
) -> None:
    """Relay committed events to Redis Streams, until SIGTERM or Ctrl-C."""
    from projector.settings import Settings

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s", level="INFO")
    settings = Settings(
        name=name, lanes=lanes, schema=schema, prefix=prefix, batch=batch, lease=lease
    )
    asyncio.run(_run(database_url, redis_url, settings, once))


async def _run(database_url: str, redis_url: str, settings: Settings, once: bool) -> None:
    from projector.connect import engine_of, redis_of
    from projector.daemon import Projector

    engine, redis = engine_of(database_url), redis_of(redis_url)
    projector = Projector(engine, redis, settings)
    try:
        if once:
            typer.echo(f"published {await projector.drain()} events")
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, projector.stop)
        await projector.run()
    finally:
        await redis.aclose()
        await engine.dispose()
