"""Structured logs: one line a record, whatever is in it, and no secrets."""

from __future__ import annotations

import io
import json
import logging

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from projector import logs
from projector.logs import Format

URL = "postgresql://user:s3cret@db.example:5432/shop"


class Log:
    """A logger of the test's own, and what it wrote."""

    def __init__(self, format: Format) -> None:
        self.stream = io.StringIO()
        self.logger = logging.Logger("projector.test")
        logs.setup(format, "DEBUG", stream=self.stream, logger=self.logger)

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()

    @property
    def line(self) -> str:
        (line,) = self.lines
        return line


@pytest.fixture
def as_text() -> Log:
    return Log("text")


@pytest.fixture
def as_json() -> Log:
    return Log("json")


@pytest.fixture(params=["text", "json"])
def either(request: pytest.FixtureRequest) -> Log:
    return Log(request.param)


def test_extra_fields_become_pairs(as_text):
    """Bare where they can be, quoted where they must be."""
    as_text.logger.warning("lost a lane", extra={"lane": 3, "note": 'a "b"', "none": None})
    head, _, tail = as_text.line.partition(" level=")
    assert head.startswith("time=2")
    assert head.endswith("Z")
    assert tail == (
        r'warning logger=projector.test message="lost a lane" lane=3 note="a \"b\"" none=-'
    )


def test_json_keeps_types(as_json):
    """Numbers stay numbers, and other things become text."""
    as_json.logger.info("on %s", "time", extra={"lane": 3, "share": 0.5, "far": float("inf")})
    found = json.loads(as_json.line)
    assert found["message"] == "on time"
    assert (found["lane"], found["share"], found["far"]) == (3, 0.5, "inf")


def test_a_record_is_one_line(either):
    """Also with line breaks of every kind in message and fields."""
    either.logger.info("a\nb\r\x85\u2028c", extra={"more": "x\x1b[31m\n", "odd key\n": "="})
    assert len(either.stream.getvalue().split("\n")) == 2


def test_an_error_is_told_in_one_line(as_text):
    """Its kind, its first line and its place."""
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        as_text.logger.exception("failed")
    assert 'error="ValueError: first"' in as_text.line
    assert f"at={__file__}:" in as_text.line


def test_json_has_the_traceback_with_its_causes(as_json):
    """Causes first, as Python shows them."""
    try:
        try:
            raise KeyError("inner")
        except KeyError as exc:
            raise ValueError("outer") from exc
    except ValueError:
        as_json.logger.exception("failed")
    traceback = json.loads(as_json.line)["traceback"]
    assert traceback.index("KeyError: 'inner'") < traceback.index("ValueError: outer")


@pytest.mark.parametrize("url", [URL, "redis://:s3cret@h", "redis://u:a/b@s3cret@h:6379/0"])
def test_no_password_of_a_url_is_shown(either, url):
    """Neither in the message, nor in a field, nor in an error, nor in its traceback."""
    try:
        raise OSError(f"cannot connect to {url}")
    except OSError as exc:
        either.logger.exception("no %s: %s %r", url, exc, exc, extra={"url": url, "problem": exc})
    assert "s3cret" not in either.line
    assert "://***@" in either.line


def test_no_password_of_a_connection_string_is_shown(either):
    """libpq's form, and that of a URL's query."""
    either.logger.info("host=db password=s3cret user=me", extra={"url": "x?password=s3cret&a=1"})
    assert "s3cret" not in either.line
    assert "user=me" in either.line


def failed_insert(data: str) -> DBAPIError:
    with create_engine("sqlite://").connect() as connection:
        try:
            connection.execute(text("insert into nowhere values (:data)"), {"data": data})
        except DBAPIError as exc:
            return exc
    raise AssertionError("it should fail")


def test_no_payload_is_shown(either):
    """Neither the parameters that a database error quotes, nor bytes."""
    problem = failed_insert("PAYLOAD")
    assert "PAYLOAD" in str(problem)
    try:
        raise problem
    except DBAPIError:
        either.logger.exception("oh: %s", problem, extra={"data": b"PAYLOAD", "why": problem})
    assert "PAYLOAD" not in either.line
    assert "no such table: nowhere" in either.line
    assert "<7 bytes>" in either.line


def test_long_fields_are_cut(either):
    """A line stays readable."""
    either.logger.info("x" * 10_000)
    assert len(either.line) < 1_000


def test_setup_again_replaces_the_first(as_text):
    """No record is written twice."""
    logs.setup("json", "INFO", stream=as_text.stream, logger=as_text.logger)
    as_text.logger.debug("not shown")
    as_text.logger.info("shown")
    assert json.loads(as_text.line)["message"] == "shown"
