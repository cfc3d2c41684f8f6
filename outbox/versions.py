"""Where an event's seq comes from: nowhere, the caller, the toolkit, or a mapped version."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

from sqlalchemy import inspect
from sqlalchemy.orm import InstanceState, Mapper

from outbox.errors import VersionSeqError


class Auto(Enum):
    """The type of `AUTO`."""

    AUTO = "auto"

    def __repr__(self) -> str:
        return "AUTO"


AUTO: Literal[Auto.AUTO] = Auto.AUTO
"""Let the toolkit take the key's next number: 1, 2, 3 … without holes, right before COMMIT."""


def check_version_column(owner: type) -> None:
    """Refuse, when the event is emitted, a class whose version cannot serve as seq."""
    mapper: Mapper[Any] = inspect(owner)
    if mapper.version_id_col is None:
        raise VersionSeqError(owner, "its mapper has no version_id_col")
    if mapper.version_id_generator is False:
        raise VersionSeqError(owner, "its version is made by the database, not counted by 1")


def mapped_version(instance: object) -> int:
    """The version that this transaction's flush gave the instance. Loads nothing."""
    state: InstanceState[Any] = inspect(instance)
    owner = type(instance)
    if state.deleted or state.was_deleted:
        raise VersionSeqError(owner, "the object was deleted, which does not raise its version")
    column = state.mapper.version_id_col
    assert column is not None, "check_version_column() has seen one"
    prop = state.mapper.get_property_by_column(column)
    version = state.dict.get(prop.key)
    if not isinstance(version, int):
        raise VersionSeqError(owner, f"its version is {version!r}, not a number")
    return version
