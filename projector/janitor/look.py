"""One look at the streams of a lane and at their groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from outbox import layout
from projector.cluster import AnyRedis
from projector.progress import GroupState
from projector.sink import script


@dataclass(frozen=True, slots=True)
class GroupLook:
    """What Redis says of a group on one stream."""

    state: GroupState
    read: int | None = None
    """How many entries were ever delivered to it; None if the server does not know."""
    following: str | None = None
    """The entry that is delivered next."""
    gone: frozenset[str] = frozenset()
    """Pending entries that nobody works on and that are gone from the stream."""


@dataclass(frozen=True, slots=True)
class StreamLook:
    key: str
    topic: str
    length: int
    first: str | None
    last: str
    """The last id that was ever given, even if its entry is gone."""
    added: int | None
    """How many entries were ever added; None if the server does not know."""
    deleted: str
    """The highest id that was deleted, other than by trimming."""
    groups: dict[str, GroupLook]


async def look_at(
    redis: AnyRedis, name: str, lane: int, streams: Sequence[str], idle: timedelta
) -> list[StreamLook]:
    """Those of the keys that hold streams. `idle`: see GroupLook.gone."""
    if not streams:
        return []
    answers = await script.run(redis, "groups", streams, [milliseconds(idle)])
    return [
        _stream(key, key.removeprefix(layout.stream(name, lane, "")), answer)
        for key, answer in zip(streams, answers, strict=True)
        if answer[0] >= 0
    ]


def milliseconds(length: timedelta) -> int:
    return int(length / timedelta(milliseconds=1))


def _stream(key: str, topic: str, answer: Sequence[Any]) -> StreamLook:
    length, first, last, added, deleted, *groups = answer
    return StreamLook(
        key=key,
        topic=topic,
        length=length,
        first=script.text(first) or None,
        last=script.text(last),
        added=_known(added),
        deleted=script.text(deleted),
        groups={script.text(group[0]): _group(*group[1:]) for group in groups},
    )


def _group(delivered: Any, oldest: Any, read: int, following: Any, gone: Any) -> GroupLook:
    return GroupLook(
        state=GroupState(script.text(delivered), script.text(oldest) or None),
        read=_known(read),
        following=script.text(following) or None,
        gone=frozenset(map(script.text, gone)),
    )


def _known(count: int) -> int | None:
    return None if count < 0 else count
