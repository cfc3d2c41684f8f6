"""What an error means for people: a bounded reason, and one line without secrets or payloads."""

from __future__ import annotations

import re
from sqlite3 import Error as SqliteError

from asyncpg.exceptions import InterfaceError, PostgresConnectionError, PostgresError
from redis.exceptions import (
    BusyLoadingError,
    ClusterError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from sqlalchemy.exc import DBAPIError

from projector.source.postgres import NotPrimary, TimelineChanged

LONGEST = 500
"""Characters of a text that are shown."""

_USERINFO = re.compile(r"://\S*@")
_PASSWORD = re.compile(r"(?i)\b(password|passwd|pwd)=[^\s&]+")


def masked(text: str) -> str:
    """Without what stands before the host of a URL, and without the value of a `password=`.

    Up to the last @ of the word, since an unparsable URL may have one in its password.
    """
    return _PASSWORD.sub(r"\1=***", _USERINFO.sub("://***@", text))


def told(problem: BaseException) -> str:
    """One line: the kind of error and its first line, in the driver's own words. What follows it
    may quote statements, parameters and rows."""
    problem = _innermost(problem)
    first = masked(str(problem)).strip().partition("\n")[0][:LONGEST]
    return f"{type(problem).__name__}: {first}" if first else type(problem).__name__


def reason(problem: BaseException) -> str:
    """One of few words for an outage, fit to be a label."""
    match _innermost(problem):
        case OutOfMemoryError():
            return "redis_full"
        case ReadOnlyError():
            return "redis_readonly"
        case BusyLoadingError():
            return "redis_loading"
        case RedisConnectionError() | RedisTimeoutError() | ClusterError():
            return "redis_away"
        case TryAgainError():
            return "redis_moving"  # a slot of a cluster, from one node to another
        case NoPermissionError():
            return "redis_denied"
        case RedisError():
            return "redis_error"
        case InterfaceError() | PostgresConnectionError() | OSError():
            # redis-py wraps what the network raises, asyncpg does not; a TimeoutError is an OSError
            return "postgres_away"
        case PostgresError(sqlstate=str(state)) if state.startswith("57P"):
            return "postgres_away"  # shutting down, starting, or a backend has crashed
        case PostgresError():
            return "postgres_error"
        case NotPrimary():
            return "postgres_standby"
        case TimelineChanged():
            return "postgres_promoted"
        case SqliteError():
            return "sqlite_error"
    return "other"


def _innermost(problem: BaseException) -> BaseException:
    """What the driver raised, without SQLAlchemy's statement and parameters around it."""
    while isinstance(problem, DBAPIError) and problem.orig is not None:
        problem = problem.orig.__cause__ or problem.orig
    return problem
