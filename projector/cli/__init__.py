"""The `projector` command. Each subcommand is a function in a file of its own, listed here."""

from __future__ import annotations

import sys

import typer

from outbox import OutboxError
from projector.cli.dead import dead
from projector.cli.demo import demo
from projector.cli.groups import groups
from projector.cli.migrate import migrate
from projector.cli.pause import pause, resume
from projector.cli.rebase import rebase
from projector.cli.rejected import rejected
from projector.cli.run import run
from projector.cli.status import status
from projector.errors import ProjectorError

# Plain texts: errors are one line each, and no traceback shows the locals with a URL in them.
app = typer.Typer(
    name="projector",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def projector() -> None:
    """Relay committed events from the outbox to Redis Streams."""


app.command()(run)
app.command()(status)
app.command()(migrate)
app.command()(rebase)
app.add_typer(groups, name="groups")
app.add_typer(dead, name="dead")
app.command()(pause)
app.command()(resume)
app.add_typer(rejected, name="rejected")
app.command()(demo)


def main() -> None:
    """Run the command line. What goes wrong is told on stderr, with exit code 1 (2: usage)."""
    try:
        app(prog_name="projector")
    except (ProjectorError, OutboxError) as exc:
        typer.echo(f"projector: {exc}", err=True)
        sys.exit(1)
