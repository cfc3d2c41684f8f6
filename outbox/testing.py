"""Assert what was emitted, in the tests of your own service.

    with recording(events) as recorder:
        place_order(session)
        session.commit()
    recorder.assert_committed("order.placed", key="7", data={"total": 42})

Or as a pytest fixture, in conftest.py: `recorder = recorder_fixture(events)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from outbox.errors import OutboxError
from outbox.event import Event
from outbox.outbox import Outbox


class Recorder:
    """What was emitted, and what of it was committed, in order.

    `committed` holds what sessions wrote. What `connection.execute(events.insert(…))` wrote stands
    in `emitted` alone, for nobody but the connection knows what becomes of it.
    """

    def __init__(self) -> None:
        self.emitted: list[Event[Any]] = []
        self.committed: list[Event[Any]] = []

    def assert_emitted(self, type: str, **fields: Any) -> Event[Any]:
        """Exactly one emitted event has this type and these fields; returns it."""
        return _the_one(self.emitted, "emitted", type, fields)

    def assert_committed(self, type: str, **fields: Any) -> Event[Any]:
        """Exactly one committed event has this type and these fields; returns it."""
        return _the_one(self.committed, "committed", type, fields)

    def assert_nothing_emitted(self) -> None:
        if self.emitted:
            raise AssertionError(f"expected no events, got {_listing(self.emitted)}")

    def assert_nothing_committed(self) -> None:
        if self.committed:
            raise AssertionError(f"expected no committed events, got {_listing(self.committed)}")

    def clear(self) -> None:
        self.emitted.clear()
        self.committed.clear()


@contextmanager
def recording(outbox: Outbox) -> Iterator[Recorder]:
    """Records until the block ends. Recorders may be nested; each sees everything."""
    recorder = Recorder()
    observer = _Observer(recorder)
    outbox._observers.append(observer)
    try:
        yield recorder
    finally:
        outbox._observers.remove(observer)


def recorder_fixture(outbox: Outbox) -> Callable[..., Any]:
    """A pytest fixture that records each test."""
    import pytest

    @pytest.fixture
    def recorder() -> Iterator[Recorder]:
        with recording(outbox) as recorder:
            yield recorder

    return recorder


class _Observer:
    def __init__(self, recorder: Recorder) -> None:
        self.emitted = recorder.emitted.append
        self.committed = recorder.committed.append


def _the_one(events: list[Event[Any]], what: str, type: str, fields: dict[str, Any]) -> Event[Any]:
    found = [event for event in events if event.type == type and _has(event, fields)]
    if len(found) == 1:
        return found[0]
    wanted = ", ".join([repr(type), *(f"{name}={value!r}" for name, value in fields.items())])
    raise AssertionError(
        f"expected one {what} event ({wanted}), found {len(found)} among {_listing(events)}"
    )


def _has(event: Event[Any], fields: dict[str, Any]) -> bool:
    return all(_value(event, name) == value for name, value in fields.items())


def _value(event: Event[Any], name: str) -> Any:
    try:
        return getattr(event, name)
    except OutboxError:  # a key or seq that the commit has yet to decide equals nothing
        return None


def _listing(events: list[Event[Any]]) -> str:
    return (
        "no events" if not events else "".join(f"\n  {event!r} {event.raw!r}" for event in events)
    )
