"""What every ClaimStore must pass, as pytest classes to subclass; needs pytest and pytest-asyncio.

class TestMyStore(ClaimStoreContract):
    @pytest.fixture
    def store(self):
        return MyStore()

A store that several processes share passes SharedStoreContract, which also needs the fixtures
`reopen` and `spoil`; see there. Each test runs twice: through the store and through `store.sync`.
`pytest.register_assert_rewrite("inbox.claims.contract")` in a conftest.py makes failures tell more.
"""

import pytest

from inbox.claims.contract.claiming import Claiming
from inbox.claims.contract.face import Face, in_threads
from inbox.claims.contract.leases import Leases
from inbox.claims.contract.settling import Settling
from inbox.claims.contract.sharing import Sharing
from inbox.claims.contract.time import Time
from inbox.claims.contract.waiters import Waiters
from inbox.claims.store import ClaimStore

__all__ = ["ClaimStoreContract", "SharedStoreContract"]


@pytest.mark.asyncio
class ClaimStoreContract(Claiming, Settling, Leases, Time, Waiters):
    """Needs a fixture `store`: a ClaimStore with no records of earlier tests. Set `sweeps_itself`
    if its server removes expired records on its own."""

    @pytest.fixture(params=["async", "sync"])
    def claims(self, request: pytest.FixtureRequest, store: ClaimStore) -> Face:
        return store if request.param == "async" else in_threads(store.sync)


class SharedStoreContract(ClaimStoreContract, Sharing):
    """Needs `store`, and two more fixtures:

    reopen  a picklable function that makes another store on the same records, also when called in
            another process, which is started with "spawn"
    spoil   a function `spoil(key, how)` that makes the record of `key` unreadable in the store if
            `how` is "corrupt", and gives it a version from the future if it is "newer"
    """
