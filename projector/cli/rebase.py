"""`projector rebase`: start over after a restore or a move to another database."""

from __future__ import annotations

import typer

from projector.cli.place import Place, placed


@placed
def rebase(place: Place) -> None:
    """Publish all that is retained again, from the database that answers now; skip nothing."""
    count = place.ask(lambda projector: projector.rebase())
    typer.echo(f"rebased {count} lanes of outbox {place.name!r}")
