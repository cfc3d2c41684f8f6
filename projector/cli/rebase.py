"""`projector rebase`: start over after a restore or a move to another database."""

from __future__ import annotations

import asyncio

import typer

from projector.cli import options
from projector.cli.session import projector_of


def rebase(
    database_url: options.DatabaseUrl,
    redis_url: options.RedisUrl,
    name: options.Name,
    lanes: options.Lanes = 8,
    schema: options.Schema = None,
    prefix: options.Prefix = "",
) -> None:
    """Publish all that is retained again, from the database that answers now; skip nothing."""

    async def run() -> int:
        async with projector_of(database_url, redis_url, name, lanes, schema, prefix) as projector:
            return await projector.rebase()

    typer.echo(f"rebased {asyncio.run(run())} lanes of outbox {name!r}")
