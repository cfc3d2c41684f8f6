"""`projector groups`: the consumer groups that rows and entries wait for."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from projector.cli import options
from projector.cli.session import projector_of

groups = typer.Typer(help="Consumer groups that rows and entries wait for.", no_args_is_help=True)


@groups.command("list")
def list_groups(
    database_url: options.DatabaseUrl,
    redis_url: options.RedisUrl,
    name: options.Name,
    lanes: options.Lanes = 8,
    schema: options.Schema = None,
    prefix: options.Prefix = "",
) -> None:
    """Show which groups are known, by topic."""

    async def run() -> dict[str, set[str]]:
        async with projector_of(database_url, redis_url, name, lanes, schema, prefix) as projector:
            return await projector.groups()

    for topic, names in sorted(asyncio.run(run()).items()):
        typer.echo(f"{topic}: {', '.join(sorted(names))}")


@groups.command("drop")
def drop_group(
    group: Annotated[str, typer.Argument(help="The group to retire.")],
    database_url: options.DatabaseUrl,
    redis_url: options.RedisUrl,
    name: options.Name,
    lanes: options.Lanes = 8,
    schema: options.Schema = None,
    prefix: options.Prefix = "",
) -> None:
    """Retire a group that nobody runs any more: what it has not read is lost to it."""

    async def run() -> int:
        async with projector_of(database_url, redis_url, name, lanes, schema, prefix) as projector:
            return await projector.drop_group(group)

    typer.echo(f"dropped group {group!r} from {asyncio.run(run())} streams")
