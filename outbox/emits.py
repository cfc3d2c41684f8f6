"""Events from inside domain methods: `self.emit(...)` on a mapped class."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, Literal, NamedTuple

from sqlalchemy import Table, inspect
from sqlalchemy import event as sa_event
from sqlalchemy.orm import InstanceState, Session

from outbox.errors import InvalidField, SessionNotUsable
from outbox.event import Event
from outbox.keys import Key
from outbox.outbox import METADATA_KEY, Outbox
from outbox.pending import OnDuplicate, Pending, buffer_of
from outbox.versions import Auto, check_version_column

_HELD = "_oncebox_held"


class Emits:
    """A mixin for mapped classes: `class Order(Emits, Base)`.

    `__topic__`   the topic of its events (default: the table's name)
    `__seq__`     None, AUTO, or "version": the mapped `version_id_col`, one event per version and
                  none on delete
    `__outbox__`  the outbox (default: the one made with this class's MetaData)

    An object that is not in the database yet keeps its events: until it is added to a session, and
    again when that transaction rolls back or the object is expunged, so that adding it anew emits
    them. `session.merge` and the bulk methods make copies that know nothing of the original's
    events: add the object itself, or emit on what merge returns.
    """

    __topic__: ClassVar[str]
    __seq__: ClassVar[Auto | Literal["version"] | None] = None
    __outbox__: ClassVar[Outbox]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not sa_event.contains(Session, "after_attach", _after_attach):
            sa_event.listen(Session, "after_attach", _after_attach)
            sa_event.listen(Session, "pending_to_transient", _pending_to_transient)

    def emit(
        self,
        type: str,
        data: Any = None,
        *,
        topic: str | None = None,
        key: Key | None = None,
        seq: int | Auto | Literal["version", "class"] | None = "class",
        headers: Mapping[str, str] | None = None,
        deliver_at: datetime | None = None,
        on_duplicate: OnDuplicate = "error",
    ) -> Event[Any]:
        """Emit an event about this object, in the transaction of the session that has it.

        `seq="class"` takes what `__seq__` says.
        """
        state: InstanceState[Any] = inspect(self)
        if state.detached:
            raise SessionNotUsable(
                f"this {self.__class__.__name__} is detached; add it to one first"
            )
        seq = self.__seq__ if seq == "class" else seq
        version_of = None
        if seq == "version":
            check_version_column(self.__class__)
            if deliver_at is not None:
                raise InvalidField("deliver_at", "a delayed event cannot carry a version")
            seq, version_of = None, self
        made = Event(
            type,
            topic=_topic_of(self) if topic is None else topic,
            key=self if key is None else key,
            data=data,
            seq=seq,
            headers=headers,
            deliver_at=deliver_at,
        )
        outbox = _outbox_of(self)
        outbox.adopt(made)
        home = None if state.persistent else self
        if state.session is None:
            _hold(self, Held(made, on_duplicate, version_of))
        else:
            outbox.keep(state.session, made, on_duplicate, version_of, home)
        return made

    def _take_back(self, item: Pending) -> None:
        _hold(self, Held(item.event, item.on_duplicate, item.version_of))


class Held(NamedTuple):
    """An event of an object that is in no session."""

    event: Event[Any]
    on_duplicate: OnDuplicate
    version_of: object | None


def _hold(instance: Emits, held: Held) -> None:
    instance.__dict__.setdefault(_HELD, []).append(held)


def _after_attach(session: Session, instance: object) -> None:
    """An object with events of its own entered a session: they are the transaction's now."""
    if not isinstance(instance, Emits) or not session.is_active:
        return  # a session that must be rolled back will expunge the object again
    held: list[Held] = instance.__dict__.get(_HELD, [])
    while held:
        event, on_duplicate, version_of = held[0]
        _outbox_of(instance).keep(session, event, on_duplicate, version_of, home=instance)
        del held[0]


def _pending_to_transient(session: Session, instance: object) -> None:
    """A new object left the session unflushed: expunged, orphaned or rolled back."""
    if isinstance(instance, Emits):
        for item in buffer_of(session).withdraw(instance):
            instance._take_back(item)


def _topic_of(instance: Emits) -> str:
    topic = getattr(instance, "__topic__", None)
    return topic or str(inspect(instance.__class__).local_table.name)


def _outbox_of(instance: Emits) -> Outbox:
    table = inspect(instance.__class__).local_table
    shared = table.metadata.info.get(METADATA_KEY) if isinstance(table, Table) else None
    outbox: Outbox | None = getattr(instance, "__outbox__", None) or shared
    if outbox is None:
        raise InvalidField(
            "outbox",
            f"{instance.__class__.__name__} has none: make Outbox(Base.metadata, name=…), "
            "or set __outbox__ on the class",
        )
    return outbox
