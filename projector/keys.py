"""The names of our Redis keys. All keys of one lane share a hash tag, so that Cluster works.

Topics are made of letters, digits, '.', '_' and '-', so that no stream can be called `@position`.
"""

from __future__ import annotations


def stream(name: str, lane: int, topic: str) -> str:
    return f"{{{name}:{lane}}}:{topic}"


def position(name: str, lane: int) -> str:
    """How far the lane is published: the text that publishing compares and moves."""
    return f"{{{name}:{lane}}}:@position"


def tops(name: str, lane: int) -> str:
    """The last id of each stream that a projector has seen."""
    return f"{{{name}:{lane}}}:@tops"


def lease(name: str, lane: int) -> str:
    return f"{{{name}:{lane}}}:@lease"


def meta(name: str) -> str:
    """Lanes and retention, for consumers."""
    return f"{name}:@meta"


def members(name: str) -> str:
    """The projectors that are alive."""
    return f"{name}:@projectors"
