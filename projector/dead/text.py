"""Letters as text for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from projector.dead.letter import Letter, Whole
from projector.table import NOTHING, printable, table, time

LONGEST = 60
"""Characters of a cause in a list."""
TITLES = ("EVENT", "LANE", "TOPIC", "TYPE", "KEY", "SEQ", "STATE", "TRIES", "AGE", "CAUSE")


def listed(letters: Iterable[Letter], now: datetime) -> Iterator[str]:
    rows = (
        (
            *(letter.event_id, str(letter.lane), letter.topic, letter.type, letter.key),
            *(letter.seq or NOTHING, letter.state, str(letter.attempts)),
            *(time(now - letter.since), letter.cause.partition("\n")[0][:LONGEST]),
        )
        for letter in letters
    )
    yield from list(table(TITLES, rows))[1:]  # without the empty line before it


def told(letter: Letter) -> str:
    """In one line."""
    return printable(f"{letter.type} of {letter.topic}, key {letter.key}: {letter.cause}")


def shown(whole: Whole) -> Iterator[str]:
    letter = whole.letter
    facts = {
        "event": letter.event_id,
        "type": letter.type,
        "topic": f"{letter.topic}, lane {letter.lane}, entry {letter.entry}",
        "key": letter.key,
        "seq": letter.seq,
        "time": whole.time,
        "state": letter.state,
        "attempts": str(letter.attempts),
        "first": letter.first,
        "last": letter.last,
        "edited": letter.edited,
        "behind": f"{whole.behind} events wait for its key" if whole.behind else "",
        "cause": letter.cause,
        "content": whole.content_type,
    }
    yield from (f"{name:10}{printable(value)}" for name, value in facts.items() if value)
    yield from _text("data", whole.data.decode("utf-8", "backslashreplace"))
    if whole.original is not None:
        yield from _text("original data", whole.original.decode("utf-8", "backslashreplace"))
    if whole.traceback:
        yield from _text("traceback", whole.traceback)


def _text(title: str, content: str) -> Iterator[str]:
    yield from ("", f"{title}:", *map(printable, content.splitlines()))
