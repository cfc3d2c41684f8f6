"""An entry of a stream on its way through a consumer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outbox import Event, layout
from outbox.entry import event_of


class Message:
    """One entry, as it was read. Its event is only made when a handler wants it: what is no event
    must not stop the lane."""

    __slots__ = (
        *("attempts", "begun", "entry", "entry_id", "event_id", "fence", "key"),
        *("place", "seq", "topic", "type"),
    )

    def __init__(self, topic: str, entry_id: bytes, entry: Mapping[bytes, bytes]) -> None:
        self.topic = topic
        self.entry_id = entry_id
        self.entry = entry
        self.type = entry.get(b"type", b"").decode("utf-8", "replace")
        self.key = entry.get(b"subject", b"").decode("utf-8", "replace")
        # What a stranger added without an id is known by the id that Redis gave it.
        self.event_id = (entry.get(b"id") or entry_id).decode("utf-8", "replace")
        self.seq = entry.get(b"sequence", b"")
        self.place = layout.place(topic, self.key)
        self.fence = 0
        self.attempts = 0
        self.begun = False

    def event(self) -> Event[Any]:
        """Raises NotDecodable if it is none."""
        return event_of(self.topic, self.entry)

    def __repr__(self) -> str:
        return f"Message({self.event_id}, {self.type!r}, {self.place!r})"


def messages_of(topic: str, entries: Sequence[Any]) -> list[Message]:
    """As XREADGROUP in a script gives them: an id, and fields and values in turn. Entries that were
    deleted while pending have no fields; see `deleted_of`."""
    return [
        Message(topic, entry_id, dict(zip(pairs[::2], pairs[1::2], strict=True)))
        for entry_id, pairs in entries
        if pairs
    ]


def deleted_of(entries: Sequence[Any]) -> list[bytes]:
    return [entry_id for entry_id, pairs in entries if not pairs]
