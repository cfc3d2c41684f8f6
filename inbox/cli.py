"""The `inbox` command: runs consumers."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from importlib import import_module
from typing import Annotated, Any

import typer

from inbox.consumer.consumer import Consumer
from inbox.errors import InboxError
from outbox import OutboxError

app = typer.Typer(
    name="inbox",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


class NotAConsumer(InboxError):
    """What was named is not there, or is no Consumer."""


@app.callback()
def inbox() -> None:
    """Handle events: once each, in order per key."""


@app.command()
def run(
    target: Annotated[str, typer.Argument(metavar="MODULE:OBJECT", help="The Consumer to run.")],
    drain: Annotated[
        bool, typer.Option("--drain", help="Handle what is there now, then exit.")
    ] = False,
) -> None:
    """Consume until SIGTERM or Ctrl-C; what runs then is finished, and the lanes are given back."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(_run(consumer_of(target), drain))


def consumer_of(target: str) -> Consumer:
    """The object that `module:object` names; the current folder is looked in first."""
    module, _, name = target.partition(":")
    if not name:
        raise NotAConsumer(f"{target!r}: say MODULE:OBJECT, as in my.service:billing")
    sys.path.insert(0, "")
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as exc:
        if exc.name is None or not module.startswith(exc.name):
            raise  # something that the module itself imports
        raise NotAConsumer(f"there is no module {module!r} here or on the path") from exc
    for part in name.split("."):
        if not hasattr(found, part):
            raise NotAConsumer(f"{module!r} has no {name!r}")
        found = getattr(found, part)
    if not isinstance(found, Consumer):
        raise NotAConsumer(f"{target!r} is a {type(found).__name__}, not a Consumer")
    return found


async def _run(consumer: Consumer, drain: bool) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, consumer.stop)
    await (consumer.drain() if drain else consumer.run())


def main() -> None:
    """Run the command line. What goes wrong is told on stderr, with exit code 1 (2: usage)."""
    try:
        app(prog_name="inbox")
    except (InboxError, OutboxError) as exc:
        typer.echo(f"inbox: {exc}", err=True)
        sys.exit(1)
