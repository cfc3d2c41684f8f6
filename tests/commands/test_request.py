"""`hash_request`: equal for equal requests, different for different ones, the same everywhere."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AnyHttpUrl, BaseModel

from inbox import hash_request
from outbox.errors import NotEncodable


@dataclass
class AsDataclass:
    total: int
    tags: set[str] = field(default_factory=set)


class AsStruct(msgspec.Struct):
    tags: set[str]
    total: int


class AsModel(BaseModel):
    total: int
    tags: set[str]


class Linked(BaseModel):
    url: AnyHttpUrl
    inner: AsModel


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def test_it_does_not_matter_what_a_command_is_written_in() -> None:
    """Dataclass, Struct, pydantic model and dict of one content; and 64 hexadecimal digits."""
    tags = {"a", "b", "c"}
    forms: list[Any] = [
        AsDataclass(1, tags),
        AsStruct(tags, 1),
        AsModel(total=1, tags=tags),
        {"tags": ["a", "b", "c"], "total": 1},
        {"total": 1, "tags": tags},
    ]
    hashes = {hash_request(form) for form in forms}
    assert len(hashes) == 1
    assert len(bytes.fromhex(hashes.pop())) == 32


def test_known_values_stay() -> None:
    """A hash that is stored today is compared with one of the next version."""
    assert hash_request({"b": [1, "x"], "a": None}) == (
        "e823ba2d7fefb27777e002eb4326b083aeb795d63ac4cfa8b540122356cf96cc"
    )


def test_models_with_types_of_their_own() -> None:
    """What pydantic brings along counts as what it is written as."""
    model = Linked(url=AnyHttpUrl("http://a.b/"), inner=AsModel(total=1, tags={"x"}))
    assert hash_request(model) == hash_request(
        {"url": "http://a.b/", "inner": {"total": 1, "tags": ["x"]}}
    )


def test_common_types() -> None:
    """Times, decimals and UUIDs are told apart by their value."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    one = {"at": at, "amount": Decimal("1.10"), "id": UUID(int=1)}
    assert hash_request(one) == hash_request(dict(one))
    assert hash_request(one) != hash_request({**one, "amount": Decimal("1.1")})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": "1"}),
        ({"a": 1}, {"a": True}),
        ({"a": 1}, {"a": 1.0}),
        ({"a": None}, {}),
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ({"a": "b,c"}, {"a": ["b", "c"]}),
        (["ab", "c"], ["a", "bc"]),
        ({"a": 'x","b":"y'}, {"a": "x", "b": "y"}),
        ("x", b"x"),
        ('"x"', b'"x"'),
        ({"a": "e\u0301"}, {"a": "\u00e9"}),
    ],
)
def test_different_requests(one: Any, other: Any) -> None:
    """Types, order of lists, and delimiters in texts count."""
    assert hash_request(one) != hash_request(other)


@given(JSON, JSON)
def test_equal_for_equal_only(one: Any, other: Any) -> None:
    """Whatever JSON can say."""
    same = msgspec.json.encode(one, order="sorted") == msgspec.json.encode(other, order="sorted")
    assert (hash_request(one) == hash_request(other)) is same


@pytest.mark.parametrize("bad", [object(), {"a": float("nan")}, {"a": [object()]}, {"a": {1, "b"}}])
def test_what_has_no_form_is_refused(bad: Any) -> None:
    """Never hashed as something else."""
    with pytest.raises(NotEncodable):
        hash_request(bad)


def test_the_same_in_another_process() -> None:
    """Sets have another order there."""
    program = "from inbox import hash_request; print(hash_request({'tags': set('abcdefgh')}))"
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert found == {hash_request({"tags": set("abcdefgh")})}
