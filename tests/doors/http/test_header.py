"""Which Idempotency-Key headers are taken, and as which key."""

from __future__ import annotations

import pytest

from inbox.http.header import key_of
from inbox.http.problem import Problem


def parse(*values: bytes) -> str | Problem | None:
    return key_of({"headers": [(b"Idempotency-Key", value) for value in values]})


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (b"abc", "abc"),
        (b'"abc"', "abc"),
        (b' "abc"\t', "abc"),
        (b'"a b, c; d"', "a b, c; d"),
        (rb'"a\"b\\c"', r'a"b\c'),
        (b"order:7/x+y=", "order:7/x+y="),
        (b"k" * 255, "k" * 255),
        (b'"' + b'\\"' * 255 + b'"', '"' * 255),
    ],
)
def test_a_key_is_read(value, key):
    """Bare, or a structured-field string with its two escapes."""
    assert parse(value) == key


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b'""',
        b'"abc',
        b'abc"',
        b'"a"b"',
        rb'"a\n"',
        b'"abc\\"',
        b"a b",
        b"a,b",
        b'"a", "b"',
        b'"a";v=1',
        b"a;v=1",
        b"a\\b",
        b"caf\xc3\xa9",
        b'"caf\xe9"',
        b'"tab\t"',
        b"k" * 256,
        b'"' + b"k" * 256 + b'"',
    ],
)
def test_what_could_mean_two_things_is_malformed(value):
    """Never cut, joined or guessed."""
    problem = parse(value)
    assert isinstance(problem, Problem)
    assert (problem.status, problem.code) == (400, "malformed-key")


def test_two_headers_are_malformed():
    """Also when they are alike."""
    assert isinstance(parse(b"a", b"a"), Problem)


def test_no_header_is_no_key():
    """And no problem."""
    assert parse() is None
