"""A dead letter, or an event that waits behind one, as Redis keeps it. Pure data."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from outbox import codec, layout
from outbox.errors import NotDecodable

DEAD = "dead"
WAITING = "waiting"

SUMMARY = (
    *("@topic", "type", "subject", "sequence", "@state", "@cause", "@attempts"),
    *("@first", "@last", "@entry", "@edited"),
)
"""The fields of a Letter, in its order: all but what may be large."""
WHOLE = (*SUMMARY, "source", "time", "datacontenttype", "data", "@original", "@traceback")


@dataclass(frozen=True, slots=True)
class Letter:
    event_id: str
    lane: int
    since: datetime
    """When it came."""
    topic: str
    type: str
    key: str
    seq: str
    """Empty if the event has none."""
    state: str
    """dead, or waiting behind another event of its key."""
    cause: str
    """What went wrong, in one line or few."""
    attempts: int
    first: str
    last: str
    """When it was given up first and last, as ISO 8601."""
    entry: str
    """The id it had in its stream."""
    edited: str
    """When its data was last edited; empty if never."""

    @property
    def place(self) -> str:
        return layout.place(self.topic, self.key)

    @property
    def turn(self) -> tuple[datetime, int, int]:
        """Sorts letters by when they came; those of one moment and key as they were published."""
        milliseconds, _, number = self.entry.partition("-")
        return self.since, int(milliseconds or 0), int(number or 0)


@dataclass(frozen=True, slots=True)
class Whole:
    """A letter with everything in it."""

    letter: Letter
    source: str
    time: str
    content_type: str
    data: bytes
    original: bytes | None
    """What was emitted, if `data` has been edited."""
    traceback: str
    behind: int
    """How many events of its key wait behind the first of them."""


def letter_of(event_id: str, lane: int, score: float, values: Sequence[Any]) -> Letter:
    """From the values of SUMMARY. Entries may be anybody's: what is missing is empty."""
    topic, type, key, seq, state, cause, attempts, first, last, entry, edited = map(_text, values)
    return Letter(
        *(event_id, lane, datetime.fromtimestamp(score / 1000, UTC)),
        *(topic, type, key, seq, state, cause),
        int(attempts) if attempts.isdigit() else 0,
        *(first, last, entry, edited),
    )


def whole_of(letter: Letter, values: Sequence[Any], queued: int) -> Whole:
    """From the values of WHOLE that follow those of SUMMARY."""
    source, time, content_type, data, original, traceback = values
    return Whole(
        *(letter, _text(source), _text(time), _text(content_type)),
        data or b"",
        original,
        _text(traceback),
        max(queued - 1, 0),
    )


def plain(letter: Letter) -> dict[str, Any]:
    """Ready for JSON."""
    return {
        "id": letter.event_id,
        "lane": letter.lane,
        "topic": letter.topic,
        "type": letter.type,
        "key": letter.key,
        "seq": int(letter.seq) if letter.seq.isdigit() else None,
        "state": letter.state,
        "cause": letter.cause,
        "attempts": letter.attempts,
        "since": letter.since.isoformat(timespec="milliseconds"),
        "first": letter.first,
        "last": letter.last,
        "entry": letter.entry,
        "edited": letter.edited or None,
    }


def plain_whole(whole: Whole) -> dict[str, Any]:
    """Ready for JSON. Data is a value if it is JSON, else base64 under `data_base64`."""
    found = plain(whole.letter)
    found |= {"source": whole.source, "time": whole.time, "content_type": whole.content_type}
    found |= _content("data", whole.data, whole.content_type)
    if whole.original is not None:
        found |= _content("original", whole.original, whole.content_type)
    return found | {"traceback": whole.traceback, "behind": whole.behind}


def _content(name: str, data: bytes, content_type: str) -> Mapping[str, Any]:
    try:
        if codec.is_json(content_type):
            return {name: codec.decode(data, content_type)}
    except NotDecodable:
        pass  # that may be why it is here
    return {f"{name}_base64": base64.b64encode(data).decode()}


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "replace")
