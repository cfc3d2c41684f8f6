"""Which dead letters a command is about: options that several commands share, as one argument."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Annotated, Any

import typer

from projector.cli.place import Place
from projector.dead.wanted import Wanted

_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def age_of(text: str) -> timedelta:
    """From `90`, `90s`, `15m`, `2h` or `7d`."""
    found = _AGE.fullmatch(text)
    try:
        return timedelta(seconds=float(found[1]) * _UNITS[found[2]]) if found else _no_age(text)
    except OverflowError:
        return _no_age(text)


def _no_age(text: str) -> timedelta:
    raise typer.BadParameter(f"{text!r} is no age: say 90s, 15m, 2h or 7d")


def _texts(flag: str, help: str) -> Any:
    return typer.Option(flag, metavar="TEXT", help=help, show_default=False)


def _age(flag: str, help: str) -> Any:
    return typer.Option(flag, metavar="AGE", help=help, parser=age_of, show_default=False)


def _wanted(
    *,
    ids: Annotated[
        list[str] | None, typer.Argument(help="Event ids, as `dead list` shows them.")
    ] = None,
    key: Annotated[list[str] | None, _texts("--key", "Of this key; may be repeated.")] = None,
    type: Annotated[list[str] | None, _texts("--type", "Of this type; may be repeated.")] = None,
    topic: Annotated[list[str] | None, _texts("--topic", "Of this topic; may be repeated.")] = None,
    error: Annotated[str, _texts("--error", "With this in their cause.")] = "",
    older_than: Annotated[timedelta | None, _age("--older-than", "Like 2h or 7d.")] = None,
    newer_than: Annotated[timedelta | None, _age("--newer-than", "Like 90s or 15m.")] = None,
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Also events that wait behind a dead letter.")
    ] = False,
) -> Wanted:
    return Wanted(
        ids=tuple(dict.fromkeys(ids or ())),
        keys=tuple(key or ()),
        types=tuple(type or ()),
        topics=tuple(topic or ()),
        error=error,
        older_than=older_than,
        newer_than=newer_than,
        waiting=waiting,
    )


def chosen(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose second argument, after its Place, is a Wanted."""

    @wraps(command)
    def run(place: Place, **named: Any) -> None:
        mine = {option: named.pop(option) for option in shared}
        command(place, _wanted(**mine), **named)

    shared = inspect.signature(_wanted, eval_str=True).parameters
    place, _, *own = inspect.signature(command, eval_str=True).parameters.values()
    named = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own, *shared.values())]
    run.__signature__ = inspect.Signature([place, *named])  # type: ignore[attr-defined]
    return run
