"""Events from inside domain methods: `self.emit(...)` on a mapped class."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar

from sqlalchemy import event as sa_event
from sqlalchemy import inspect
from sqlalchemy.orm import Session, object_session

from outbox.errors import InvalidField
from outbox.event import Event
from outbox.keys import Key
from outbox.outbox import METADATA_KEY, Outbox
from outbox.pending import OnDuplicate, Pending
from outbox.versions import Auto, check_version_column

if TYPE_CHECKING:
    from sqlalchemy import MetaData

T = TypeVar("T")

_HELD = "_oncebox_held"


class Emits:
    """A mixin for mapped classes: `class Order(Emits, Base)`.

    `__topic__`   the topic of its events (default: the table's name)
    `__seq__`     None, AUTO, or "version": the mapped `version_id_col`, one event per version and
                  none on delete
    `__outbox__`  the outbox (default: the one made with this class's MetaData)

    An object that is in no session yet keeps its events until it is added to one; if that
    transaction rolls back, the object has them again, so that adding it anew emits them.
    """

    __topic__: ClassVar[str]
    __seq__: ClassVar[Auto | Literal["version"] | None] = None
    __outbox__: ClassVar[Outbox]
    if TYPE_CHECKING:
        metadata: ClassVar[MetaData]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not sa_event.contains(Session, "after_attach", _after_attach):
            sa_event.listen(Session, "after_attach", _after_attach)

    def emit(
        self,
        type: str,
        data: T = None,  # type: ignore[assignment]  # without data, T is None
        *,
        topic: str | None = None,
        key: Key | None = None,
        seq: int | Auto | Literal["version"] | None = None,
        headers: Mapping[str, str] | None = None,
        deliver_at: datetime | None = None,
        on_duplicate: OnDuplicate = "error",
    ) -> Event[T]:
        """Emit an event about this object, in the transaction of the session that has it."""
        outbox = _outbox_of(self)
        seq = self.__seq__ if seq is None else seq
        versioned = seq == "version"
        if versioned:
            check_version_column(self.__class__)
        made = outbox.make(
            type,
            topic=topic or _topic_of(self),
            key=self if key is None else key,
            data=data,
            seq=None if versioned else seq,
            headers=headers,
            deliver_at=deliver_at,
        )
        if versioned and deliver_at is not None:
            raise InvalidField("deliver_at", "a delayed event cannot carry a version")
        held = Held(made, on_duplicate, self if versioned else None)
        session = object_session(self)
        if session is None:
            _hold(self, held)
        else:
            outbox.keep(session, made, on_duplicate, held.version_of)
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
    if isinstance(instance, Emits):
        for event, on_duplicate, version_of in instance.__dict__.pop(_HELD, ()):
            _outbox_of(instance).keep(session, event, on_duplicate, version_of, home=instance)


def _topic_of(instance: Emits) -> str:
    topic = getattr(instance, "__topic__", None)
    return topic or str(inspect(instance.__class__).local_table.name)


def _outbox_of(instance: Emits) -> Outbox:
    outbox: Outbox | None = getattr(instance, "__outbox__", None) or instance.metadata.info.get(
        METADATA_KEY
    )
    if outbox is None:
        raise InvalidField(
            "outbox",
            f"{instance.__class__.__name__} has none: make Outbox(Base.metadata, name=…), "
            "or set __outbox__ on the class",
        )
    return outbox
