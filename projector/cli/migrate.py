"""`projector migrate`: the tables of an outbox, created, adopted, compared or printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from projector.cli import options

if TYPE_CHECKING:
    from projector.migration import Outcome


def migrate(
    database_url: options.DatabaseUrl,
    name: options.Name,
    lanes: options.Lanes = 8,
    schema: options.Schema = None,
    prefix: options.Prefix = "",
    sql: Annotated[
        bool, typer.Option("--sql", help="Print the statements; connect to nothing.")
    ] = False,
    downgrade: Annotated[
        str | None,
        typer.Option(
            "--downgrade",
            metavar="REV",
            help="Go back to a revision; 'base' drops the tables and every event in them.",
            show_default=False,
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only name the differences; exit 1 if there are any.")
    ] = False,
) -> None:
    """Create the outbox's tables, or adopt those that are there, and keep them up to date."""
    from projector import migration

    if sql + check + (downgrade is not None) > 1:
        raise typer.BadParameter("--sql, --check and --downgrade exclude each other")
    outbox = options.outbox_of(name, lanes, schema, prefix)
    if sql:
        typer.echo(migration.sql(database_url, outbox), nl=False)
    elif check:
        _report(migration.check(database_url, outbox))
    elif downgrade is not None:
        migration.downgrade(database_url, outbox, downgrade)
        typer.echo(f"downgraded the tables of outbox {name!r} to {downgrade}")
    else:
        typer.echo(_told(migration.upgrade(database_url, outbox), name))


def _report(differences: list[str]) -> None:
    for difference in differences:
        typer.echo(difference)
    if differences:
        raise typer.Exit(1)
    typer.echo("no differences")


def _told(outcome: Outcome, name: str) -> str:
    from projector.migration import Adopted, Created, Upgraded, UpToDate

    match outcome:
        case Created(revision):
            return f"created the tables of outbox {name!r} (revision {revision})"
        case Adopted(revision):
            return f"adopted the existing tables of outbox {name!r} (revision {revision})"
        case Upgraded(before, revision):
            return f"upgraded the tables of outbox {name!r} from {before} to {revision}"
        case UpToDate(revision):
            return f"the tables of outbox {name!r} are already up to date (revision {revision})"
