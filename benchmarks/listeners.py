"""The session listeners of an outbox, taken away for as long as a rival is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionEvents

from outbox import hooks


@contextmanager
def without_listeners() -> Iterator[None]:
    """Plain SQLAlchemy inside. Making an Outbox adds listeners to every session of the process;
    what does not use it must not be charged for them."""
    installed = _installed()
    if not installed:
        raise RuntimeError(
            "outbox.hooks has no listeners on Session: adapt benchmarks/listeners.py"
        )
    for name, listener in installed:
        event.remove(Session, name, listener)
    try:
        yield
    finally:
        hooks.install()


def _installed() -> list[tuple[str, Callable[..., Any]]]:
    candidates = [(name.removeprefix("_"), value) for name, value in vars(hooks).items()]
    return [
        (name, listener)
        for name, listener in candidates
        if hasattr(SessionEvents, name) and event.contains(Session, name, listener)
    ]
