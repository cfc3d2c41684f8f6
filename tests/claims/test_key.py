"""Keys, as pure functions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inbox import InvalidKey, store_key
from inbox.claims.key import MAX_BYTES, check_key

TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(":#01\0"), max_size=8)
TRIPLE = st.tuples(TEXT.filter(bool), TEXT, TEXT)


def made(triple: tuple[str, str, str]) -> str:
    return store_key(triple[0], scope=triple[1], tenant=triple[2])


@given(TRIPLE, TRIPLE)
def test_different_triples_have_different_keys(
    one: tuple[str, str, str], other: tuple[str, str, str]
):
    """And the same triple has the same key, which every store accepts."""
    assert (made(one) == made(other)) == (one == other)
    check_key(made(one))


def test_a_short_key_stays_readable():
    """What people may have to look for in a store is not hashed without need."""
    assert store_key("order-7", scope="shop", tenant="acme") == "4:shop4:acmeorder-7"


def test_a_long_key_becomes_a_short_one():
    """However long it is; and no text can pass for a hashed one."""
    long = store_key("k" * 100_000)
    assert len(long) < MAX_BYTES
    assert store_key(long) != long


@pytest.mark.parametrize("bad", ["", None, 7, b"k", "\udc80"])
def test_what_is_no_key_is_refused(bad: object):
    """With the field's name."""
    with pytest.raises(InvalidKey, match=r"^key: "):
        store_key(bad)  # type: ignore[arg-type]
    if bad:
        with pytest.raises(InvalidKey, match=r"^tenant: "):
            store_key("k", tenant=bad)  # type: ignore[arg-type]
