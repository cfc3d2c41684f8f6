"""`projector groups`: the consumer groups that rows and entries wait for."""

from __future__ import annotations

from typing import Annotated

import typer

from projector.cli.place import Place, placed

groups = typer.Typer(help="Consumer groups that rows and entries wait for.", no_args_is_help=True)


@groups.command("list")
@placed
def list_groups(place: Place) -> None:
    """Show which groups are known, by topic."""
    found = place.ask(lambda projector: projector.groups())
    for topic, names in sorted(found.items()):
        typer.echo(f"{topic}: {', '.join(sorted(names))}")


@groups.command("drop")
@placed
def drop_group(
    place: Place,
    group: Annotated[str, typer.Argument(help="The group to retire.")],
    force: Annotated[
        bool, typer.Option("--force", help="Also if it has dead letters: they are lost.")
    ] = False,
) -> None:
    """Retire a group that nobody runs any more: what it has not read is lost to it."""
    count = place.ask(lambda projector: projector.drop_group(group, force=force))
    typer.echo(f"dropped group {group!r} from {count} streams")
