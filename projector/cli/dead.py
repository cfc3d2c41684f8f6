"""`projector dead`: events that a group gave up on, and what is to become of them."""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from projector.cli.chosen import chosen
from projector.cli.place import Place, placed
from projector.dead import text
from projector.dead.letter import Letter, Whole, plain, plain_whole
from projector.dead.outcome import (
    Busy,
    Changed,
    Discarded,
    Gone,
    Marked,
    NoSuchLetter,
    NotEdited,
)
from projector.dead.wanted import Wanted

if TYPE_CHECKING:
    from projector.daemon import Projector
    from projector.dead.letters import DeadLetters

dead = typer.Typer(help="Events that a group gave up on.", no_args_is_help=True)

Group = Annotated[
    str, typer.Option("--group", metavar="GROUP", help="Whose letters.", show_default=False)
]
EventId = Annotated[str, typer.Argument(help="The event's id.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line, for machines.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
All = Annotated[bool, typer.Option("--all", help="All of the group's letters.")]

_TURN = attrgetter("turn")


@dead.command("list")
@placed
@chosen
def list_letters(
    place: Place,
    wanted: Wanted,
    group: Group,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Show so many, oldest first.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Show dead letters, the oldest first."""
    count, letters, footer = place.ask(lambda projector: _listed(projector, group, wanted, limit))
    if as_json:
        for letter in letters:
            typer.echo(json.dumps(plain(letter), ensure_ascii=False))
        return
    for line in text.listed(letters, datetime.now(UTC)):
        typer.echo(line)
    if count > len(letters):
        typer.echo(f"… and {count - len(letters)} more; see --limit")
    typer.echo(footer)


@dead.command()
@placed
def show(place: Place, event_id: EventId, group: Group, as_json: AsJson = False) -> None:
    """Show one letter with its data and traceback."""
    whole = place.ask(lambda projector: _whole(projector, group, event_id))
    if as_json:
        typer.echo(json.dumps(plain_whole(whole), ensure_ascii=False))
    else:
        typer.echo("\n".join(text.shown(whole)))


@dead.command()
@placed
@chosen
def retry(
    place: Place, wanted: Wanted, group: Group, every: All = False, dry_run: DryRun = False
) -> None:
    """Have letters handled again, in place and in order, with what waits behind them."""
    _refuse_nothing_said(wanted, every)
    told = place.ask(lambda projector: _retried(projector, group, wanted, dry_run))
    typer.echo(told)


@dead.command()
@placed
@chosen
def discard(
    place: Place, wanted: Wanted, group: Group, every: All = False, dry_run: DryRun = False
) -> None:
    """Remove letters for good; what waits behind them goes on."""
    _refuse_nothing_said(wanted, every)
    told = place.ask(lambda projector: _discarded(projector, group, wanted, dry_run))
    typer.echo(told)


@dead.command()
@placed
def edit(
    place: Place,
    event_id: EventId,
    group: Group,
    data: Annotated[
        str | None, typer.Option("--data", help="The new data.", show_default=False)
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            metavar="FILE",
            help="A file with it; - reads standard input.",
            show_default=False,
        ),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Replace a letter's data, for the next retry; without --data or --file in your editor.

    What was emitted is kept beside it.
    """
    if data is not None and file is not None:
        raise typer.BadParameter("--data and --file exclude each other")
    from projector.dead.letters import check

    whole = place.ask(lambda projector: _whole(projector, group, event_id))
    new = _new_data(whole, data, file)
    if dry_run:
        check(whole, new)
        typer.echo(f"would replace {len(whole.data)} bytes with {len(new)}; dry run")
        return
    place.ask(lambda projector: _edited(projector, group, whole, new))
    typer.echo(f"edited letter {event_id}; `projector dead retry` has it handled again")


def _refuse_nothing_said(wanted: Wanted, every: bool) -> None:
    if wanted.everything and not every:
        raise typer.BadParameter("say which letters, or --all")


def _new_data(whole: Whole, data: str | None, file: Path | None) -> bytes:
    if data is not None:
        return data.encode()
    if file is None:
        from projector.cli.editor import edited

        return edited(whole)
    try:
        return typer.get_binary_stream("stdin").read() if str(file) == "-" else file.read_bytes()
    except OSError as exc:
        raise typer.BadParameter(f"cannot read {file}: {exc.strerror}") from exc


# What a projector is asked


async def _listed(
    projector: Projector, group: str, wanted: Wanted, limit: int
) -> tuple[int, list[Letter], str]:
    """How many there are, the oldest of them, and how the group is doing."""
    letters = await projector.dead(group)
    count, oldest = 0, list[Letter]()
    async for letter in letters.find(wanted):
        count += 1
        oldest.append(letter)
        if len(oldest) >= 2 * limit:
            oldest = heapq.nsmallest(limit, oldest, key=_TURN)
    total = await letters.count()
    footer = (
        f"{count} match; group {group!r} has {total.dead} dead letters, {total.waiting} events "
        f"wait behind them, {total.parked} keys are parked"
    )
    return count, heapq.nsmallest(limit, oldest, key=_TURN), footer


async def _whole(projector: Projector, group: str, event_id: str) -> Whole:
    whole = await (await projector.dead(group)).whole(event_id)
    if whole is None:
        raise NoSuchLetter(event_id, group)
    return whole


async def _retried(projector: Projector, group: str, wanted: Wanted, dry_run: bool) -> str:
    letters = await projector.dead(group)
    if dry_run:
        return await _would(letters, wanted, "retry")
    places = set[tuple[int, str]]()

    async def act(letter: Letter) -> str:
        match await letters.retry(letter):
            case Marked(before):
                places.add((letter.lane, letter.place))
                return "were marked before" if before else "marked"
            case Gone():
                return "gone meanwhile"

    done = await _each(letters, wanted, act)
    marked = done["marked"] + done["were marked before"]
    told = f"marked {marked} letters of {len(places)} keys to be handled again"
    if done["were marked before"]:
        told += f" ({done['were marked before']} already were)"
    told += _left_out(done)
    if marked and not await letters.consumers():
        told += f"\nno consumer of group {group!r} is running: nothing happens until one does"
    return told


async def _discarded(projector: Projector, group: str, wanted: Wanted, dry_run: bool) -> str:
    letters = await projector.dead(group)
    if dry_run:
        return await _would(letters, wanted, "discard")
    going_on = set[tuple[int, str]]()

    async def act(letter: Letter) -> str:
        match await letters.discard(letter):
            case Discarded(left):
                if left is not None:
                    going_on.add((letter.lane, letter.place))
                return "discarded"
            case Busy():
                return "busy"
            case Gone():
                return "gone meanwhile"

    # Backwards: else what is behind a letter goes on before it is its turn to be discarded.
    done = await _each(letters, wanted, act, newest_first=True)
    told = f"discarded {done['discarded']} letters"
    if going_on:
        told += f"; {len(going_on)} keys go on without them"
    return told + _left_out(done)


async def _edited(projector: Projector, group: str, whole: Whole, data: bytes) -> None:
    event_id = whole.letter.event_id
    match await (await projector.dead(group)).edit(whole, data):
        case Gone():
            raise NoSuchLetter(event_id, group)
        case Busy(wait):
            seconds = wait.total_seconds()
            raise NotEdited(event_id, f"a consumer is at it; try again in {seconds:.0f} s")
        case Changed():
            raise NotEdited(event_id, "somebody else has edited it meanwhile; look at it again")


async def _each(
    letters: DeadLetters,
    wanted: Wanted,
    act: Callable[[Letter], Awaitable[str]],
    *,
    newest_first: bool = False,
) -> Counter[str]:
    found = [letter async for letter in letters.find(wanted)]
    done = Counter[str]()
    for letter in sorted(found, key=_TURN, reverse=newest_first):
        done[await act(letter)] += 1
    done["not found"] = len(set(wanted.ids) - {letter.event_id for letter in found})
    return done


async def _would(letters: DeadLetters, wanted: Wanted, what: str) -> str:
    count, places = 0, set[tuple[int, str]]()
    async for letter in letters.find(wanted):
        count += 1
        places.add((letter.lane, letter.place))
        typer.echo(f"{letter.event_id}  {text.told(letter)}")
    return f"would {what} {count} letters of {len(places)} keys; dry run, nothing was changed"


def _left_out(done: Counter[str]) -> str:
    words = {
        "busy": "being handled right now, and left alone",
        "gone meanwhile": "gone meanwhile",
        "not found": "not found",
    }
    return "".join(f"; {done[what]} {told}" for what, told in words.items() if done[what])
