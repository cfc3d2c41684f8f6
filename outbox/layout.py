"""The names of our keys in Redis: a contract that projectors, consumers and publishers share.

All keys of one lane have the same hash tag, so that Cluster works and one script may touch them.
Topics are made of letters, digits, '.', '_' and '-', so that no stream can be called `@position`.
"""

from __future__ import annotations

LANE_CONSUMER = "@lane"
"""The consumer that entries of an ordered lane are delivered to, whichever process has the lane."""


def _lane(name: str, lane: int, what: str) -> str:
    return f"{{{name}:{lane}}}:{what}"


def stream(name: str, lane: int, topic: str) -> str:
    return _lane(name, lane, topic)


def position(name: str, lane: int) -> str:
    """How far the lane is published: the text that publishing compares and moves."""
    return _lane(name, lane, "@position")


def tops(name: str, lane: int) -> str:
    """The last id of each stream that a projector has seen."""
    return _lane(name, lane, "@tops")


def lost(name: str, lane: int) -> str:
    """Entries that were gone from a stream before a group had them: how many, by `loss`."""
    return _lane(name, lane, "@lost")


def loss(why: str, topic: str, group: str) -> str:
    """A field of `lost`. `why`: they were `unread`, or `pending`."""
    return f"{why}:{topic}:{group}"


def lease(name: str, lane: int, group: str | None = None) -> str:
    """Who works on the lane: which projector, or which consumer of a group."""
    return _lane(name, lane, "@lease" if group is None else f"@lease:{group}")


def record(name: str, lane: int, group: str, event_id: str) -> str:
    """A group's claim of an event, and then that it is handled."""
    return _lane(name, lane, f"@inbox:{group}:{event_id}")


def watermarks(name: str, lane: int, group: str) -> str:
    """The last seq that a group has handled of each topic and key."""
    return _lane(name, lane, f"@seq:{group}")


def dead(name: str, lane: int, group: str) -> str:
    """A group's dead letters and those that wait behind them: event id, by the time it came."""
    return _lane(name, lane, f"@dead:{group}")


def letter(name: str, lane: int, group: str, event_id: str) -> str:
    """One dead letter: the entry's fields, and what became of it."""
    return _lane(name, lane, f"@dead:{group}:{event_id}")


def parked(name: str, lane: int, group: str) -> str:
    """The parked keys of a group, as `place` gives them, with the number of events that wait."""
    return _lane(name, lane, f"@parked:{group}")


def queue(name: str, lane: int, group: str, place: str) -> str:
    """The event ids of a parked key, in order."""
    return _lane(name, lane, f"@queue:{group}:{place}")


def retries(name: str, lane: int, group: str) -> str:
    """Parked keys that are to be worked off."""
    return _lane(name, lane, f"@retry:{group}")


def place(topic: str, key: str) -> str:
    """Where order holds: a topic and a key, as one text. No topic has a colon."""
    return f"{topic}:{key}"


def meta(name: str) -> str:
    """Lanes and retention, for consumers."""
    return f"{name}:@meta"


def members(name: str, group: str | None = None) -> str:
    """The projectors, or the consumers of a group, that are alive."""
    return f"{name}:@projectors" if group is None else f"{name}:@consumers:{group}"
