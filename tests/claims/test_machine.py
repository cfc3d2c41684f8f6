"""Two owners against a model, on every store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from sqlalchemy import create_engine, make_url

from inbox import (
    Applied,
    Claimed,
    Done,
    FileStore,
    Lost,
    MemoryStore,
    Mismatch,
    RedisStore,
    Running,
    SqlAlchemyStore,
    State,
    SyncClaimStore,
    new_token,
)
from support.stores import create_tables

OWNERS = st.sampled_from(["ann", "bob"])
FINGERPRINTS = st.sampled_from(["f", "g"])
STATES = st.sampled_from([State.COMPLETED, State.FAILED])
LONG, MOMENT = 600, 0.001


class Owners(RuleBasedStateMachine):
    """What the record must be, told without a store: who has it, and what is left of it."""

    make_store: Callable[[], SyncClaimStore]

    def __init__(self) -> None:
        super().__init__()
        self.store = type(self).make_store()
        self.key = uuid4().hex
        self.held: dict[str, Any] = {}  # each owner's last claim
        self.holder: str | None = None  # whose claim is not taken over, released or settled
        self.late = False  # the holder's lease is over
        self.done: tuple[State, bytes | None, str] | None = None
        self.settled_by: Any = None
        self.released: Any = None
        self.fingerprint = ""
        self.fences = [0]

    @rule(owner=OWNERS, fingerprint=FINGERPRINTS, again=st.booleans())
    def claim(self, owner: str, fingerprint: str, again: bool) -> None:
        mine = self.held.get(owner)
        token = mine.token if again and mine else new_token()
        outcome = self.store.claim(self.key, fingerprint=fingerprint, token=token, lease=LONG)
        holds = self.holder == owner and mine is not None and token == mine.token
        if holds and fingerprint == self.fingerprint:
            assert outcome == Claimed(mine)
            self.late = False
        elif self.done is None and (self.holder is None or self.late):
            assert isinstance(outcome, Claimed)
            assert outcome.taken_over == (self.holder is not None)
            assert outcome.claim.fence > max(self.fences)
            self.fences.append(outcome.claim.fence)
            self.held[owner], self.holder, self.late = outcome.claim, owner, False
            self.fingerprint, self.released = fingerprint, None
        elif fingerprint != self.fingerprint:
            assert outcome == Mismatch(self.fingerprint)
        elif self.done is None:
            assert isinstance(outcome, Running)
        else:
            assert isinstance(outcome, Done)
            assert (outcome.record.state, outcome.record.payload) == self.done[:2]

    @rule(owner=OWNERS)
    def renew(self, owner: str) -> None:
        if owner in self.held:
            assert self.store.renew(self.held[owner], LONG) == (self.holder == owner)
            self.late = self.late and self.holder != owner

    @rule(owner=OWNERS, state=STATES, payload=st.none() | st.binary(max_size=4))
    def settle(self, owner: str, state: State, payload: bytes | None) -> None:
        if owner not in self.held:
            return
        outcome = self.store.settle(self.held[owner], state, payload, LONG)
        if self.holder == owner:
            self.done, self.settled_by, self.holder = (
                (state, payload, self.fingerprint),
                self.held[owner],
                None,
            )
            assert outcome == Applied()
        else:
            again = self.done is not None and self.held[owner] == self.settled_by
            assert outcome == (Applied() if again else Lost())

    @rule(owner=OWNERS)
    def release(self, owner: str) -> None:
        if owner not in self.held:
            return
        claim = self.held[owner]
        assert self.store.release(claim) == (self.holder == owner or claim == self.released)
        if self.holder == owner:
            self.holder, self.released = None, claim

    @precondition(lambda self: self.holder is not None and not self.late)
    @rule()
    def let_the_lease_end(self) -> None:
        assert self.holder
        assert self.store.renew(self.held[self.holder], MOMENT)
        self.wait_until_gone()
        self.late = True

    @precondition(lambda self: self.holder is not None)
    @rule(owner=OWNERS)
    def settle_for_a_moment(self, owner: str) -> None:
        assert self.holder
        claim = self.held[self.holder]
        assert self.store.settle(claim, State.COMPLETED, b"x", MOMENT) == Applied()
        self.wait_until_gone()
        self.holder, self.done, self.released = None, None, None

    @rule()
    def forget(self) -> None:
        bound = self.done is not None or (self.holder is not None and not self.late)
        assert self.store.forget(self.key) == bound
        if bound:
            self.holder, self.done, self.released = None, None, None

    @rule()
    def look(self) -> None:
        record = self.store.peek(self.key)
        if self.done is not None:
            assert record is not None
            assert (record.state, record.payload, record.fingerprint) == self.done
        elif self.holder is not None and not self.late:
            assert record is not None
            assert (record.state, record.fence) == (State.RUNNING, self.held[self.holder].fence)
        else:
            assert record is None

    @precondition(lambda self: not self.late and self.released is None)
    @rule()
    def purge(self) -> None:
        """Where it makes no difference: a late owner, or a second release, may fail after it."""
        self.store.purge()

    def wait_until_gone(self) -> None:
        deadline = time.monotonic() + 10
        while self.store.peek(self.key) is not None:
            assert time.monotonic() < deadline


@pytest.fixture(params=["memory", "file", "redis", "sqlite", "postgresql"])
def make_store(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[[], SyncClaimStore]]:
    match request.param:
        case "memory":
            yield lambda: MemoryStore().sync
        case "file":
            yield lambda: FileStore(tmp_path / uuid4().hex).sync
        case "redis":
            with redis.Redis.from_url(request.getfixturevalue("redis_url")) as client:
                yield lambda: RedisStore(client, f"{uuid4().hex}:").sync
        case _:
            url = make_url(f"sqlite:///{tmp_path / 'claims.db'}")
            if request.param == "postgresql":
                url = make_url(request.getfixturevalue("database"))
                url = url.set(drivername="postgresql+psycopg")
            create_tables(url, "")
            engine = create_engine(url)
            yield lambda: SqlAlchemyStore(engine).sync
            engine.dispose()


def test_two_owners_never_surprise_the_model(make_store: Callable[[], SyncClaimStore]):
    """Whatever two owners do, and in whatever order, every store answers as the model says."""
    machine = type("Machine", (Owners,), {"make_store": staticmethod(make_store)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=40,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
