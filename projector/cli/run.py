"""`projector run`: the relay, until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from projector.cli import options
from projector.source.batch import EVENT_BYTES

if TYPE_CHECKING:
    from projector.settings import Settings


log = logging.getLogger("projector")


def run(
    database_url: options.DatabaseUrl,
    redis_url: options.RedisUrl,
    name: options.Name,
    lanes: Annotated[
        int | None,
        typer.Option(
            "--lanes",
            envvar="PROJECTOR_LANES",
            min=1,
            max=32767,
            help="For a database that has no number of lanes yet; 8 without it.",
            show_default=False,
        ),
    ] = None,
    schema: options.Schema = None,
    prefix: options.Prefix = "",
    config: options.Config = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Events published at once.")] = 1000,
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            envvar="PROJECTOR_HTTP",
            metavar="HOST:PORT",
            help="Serve /metrics, /healthz and /readyz there.",
            show_default=False,
        ),
    ] = None,
    log_format: Annotated[
        str,
        typer.Option("--log-format", envvar="PROJECTOR_LOG_FORMAT", help="text or json."),
    ] = "text",
    lease: Annotated[float, typer.Option("--lease", help="Seconds a lane is held for.")] = 10,
    checkpoint: Annotated[
        float, typer.Option("--checkpoint", help="Seconds between checkpoints in the database.")
    ] = 5,
    retention: Annotated[
        float,
        typer.Option(
            "--retention",
            envvar="PROJECTOR_RETENTION",
            help="Seconds that rows stay after every group has acknowledged them.",
        ),
    ] = 86_400,
    keep_at_most: Annotated[
        float | None,
        typer.Option(
            "--keep-at-most",
            help="Seconds after which rows go even if a group has not acknowledged them.",
            show_default="for ever",
        ),
    ] = None,
    trim: Annotated[
        bool,
        typer.Option("--trim/--no-trim", help="Remove entries that every group has acknowledged."),
    ] = True,
    pending_idle: Annotated[
        float,
        typer.Option(
            "--pending-idle",
            help="Seconds after which pending entries of a dead consumer go to a living one.",
        ),
    ] = 300,
    event_bytes: Annotated[
        int, typer.Option("--event-bytes", min=1, help="Larger events are set aside.")
    ] = EVENT_BYTES,
    notify: Annotated[
        bool,
        typer.Option(
            "--notify",
            envvar="PROJECTOR_NOTIFY",
            help="Let the commits of an Outbox(notify=True) end the wait between two polls.",
        ),
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="Publish what is committed now, then exit.")
    ] = False,
) -> None:
    """Relay committed events to Redis Streams, until SIGTERM or Ctrl-C."""
    from projector import logs
    from projector.config import load
    from projector.settings import Settings

    if log_format not in ("text", "json"):
        raise typer.BadParameter("--log-format is text or json")
    logs.setup("json" if log_format == "json" else "text")
    settings = Settings(
        name=name,
        lanes=lanes,
        schema=schema,
        prefix=prefix,
        batch=batch,
        lease=lease,
        checkpoint=checkpoint,
        retention=retention,
        keep_at_most=keep_at_most,
        trim=trim,
        pending_idle=pending_idle,
        event_bytes=event_bytes,
        topology=load(config).topics if config else {},
        notify=notify,
    )
    asyncio.run(_run(database_url, redis_url, settings, once, http))


async def _run(
    database_url: str, redis_url: str, settings: Settings, once: bool, http: str | None
) -> None:
    from projector.connect import engine_of, redis_of
    from projector.daemon import Projector
    from projector.http import address_of, serve

    engine, redis = engine_of(database_url), redis_of(redis_url)
    projector = Projector(engine, redis, settings)
    try:
        if once:
            typer.echo(f"published {await projector.drain()} events")
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, projector.stop)
        async with AsyncExitStack() as stack:
            if http is not None:
                port = await stack.enter_async_context(
                    serve(projector.telemetry, *address_of(http))
                )
                log.info("serving metrics and health", extra={"port": port})
            await projector.run()
    finally:
        await redis.aclose()
        await engine.dispose()
