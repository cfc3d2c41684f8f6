"""The model of all others: hostile writers, a real projector, and one trouble after the other.

A few seconds each here; for as long as you like with `make stress SECONDS=…`.
"""

from __future__ import annotations

import pytest

from stress.scene import play
from stress.troubles import TROUBLES

SECONDS = 1
SEED = 7


@pytest.mark.parametrize("trouble", TROUBLES, ids=[trouble.name for trouble in TROUBLES])
async def test_every_committed_event_is_published_once_and_in_order(embedded_postgres, trouble):
    """Twelve writers, early xids, rollbacks, transactions of up to two seconds; and the trouble."""
    outcome = await play(trouble, embedded_postgres, SECONDS, SEED)
    assert outcome.good, str(outcome)
    assert outcome.audit.committed > 20
    assert all(outcome.tally.values())
    assert outcome.tally, "it made no trouble at all"
