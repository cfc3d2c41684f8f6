"""`projector pause` and `projector resume`: hold one topic back by hand."""

from __future__ import annotations

from typing import Annotated

import typer

from projector.cli.place import Place, placed

Topic = Annotated[str, typer.Argument(help="The topic.")]


@placed
def pause(place: Place, topic: Topic) -> None:
    """Hold a topic back: its events stay in the database, and the other topics go on."""
    place.ask(lambda projector: projector.pause(topic))
    typer.echo(f"paused topic {topic!r}; running projectors follow within seconds")


@placed
def resume(place: Place, topic: Topic) -> None:
    """Let a paused topic go on where it stood."""
    was = place.ask(lambda projector: projector.resume(topic))
    typer.echo(f"resumed topic {topic!r}" if was else f"topic {topic!r} was not paused")
