"""`projector rejected`: rows that could not be published and were set aside."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from projector.cli.place import Place, placed

rejected = typer.Typer(help="Rows that were set aside.", no_args_is_help=True)

Ids = Annotated[list[UUID], typer.Argument(help="Event ids, as `rejected list` shows them.")]


@rejected.command("list")
@placed
def list_rejected(
    place: Place,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many, newest first.")] = 100,
) -> None:
    """Show what was set aside, and why."""
    for row in place.ask(lambda projector: projector.rejected.newest(limit)):
        where = f"lane {row.lane}, topic {row.topic!r}, key {row.key!r}, {row.size} bytes"
        typer.echo(f"{row.event_id}  {row.type}  {where}: {row.cause}")


@rejected.command("retry")
@placed
def retry_rejected(place: Place, ids: Ids) -> None:
    """Put rows back at the end of the log, once what was wrong is right."""
    count = place.ask(lambda projector: projector.rejected.retry(ids))
    typer.echo(f"put {count} rows back into the log")


@rejected.command("discard")
@placed
def discard_rejected(place: Place, ids: Ids) -> None:
    """Forget rows for good."""
    count = place.ask(lambda projector: projector.rejected.discard(ids))
    typer.echo(f"discarded {count} rows")
