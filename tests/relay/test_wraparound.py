"""PostgreSQL's 32-bit transaction ids start over; ours, and its snapshots', do not."""

from __future__ import annotations

from projector.embedded import Postgres
from support.lanes import pipeline

BOUNDARY = 2**32
SEGMENT = 1024 * 1024
"""Transactions in one file of pg_xact, at four to a byte."""


def age(postgres: Postgres, xid: int) -> None:
    """Lets the next transaction have this id, as after billions of them."""
    for database in ("postgres", "template1"):
        postgres.execute("vacuum freeze", database)
    postgres.stop()
    status = postgres._data / "pg_xact" / f"{xid // SEGMENT:04X}"
    status.write_bytes(bytes(SEGMENT // 4))
    if postgres._runs_as:
        postgres._runs_as.own(status)
    options = ("--next-transaction-id", str(xid), "--oldest-transaction-id", str(xid - 1000))
    program = postgres._program("pg_resetwal")
    postgres._run(program, *options, "--epoch", "0", postgres._data)
    postgres.start()


async def test_transaction_ids_may_wrap_around(own_postgres, redis_url):
    """Nothing is lost or doubled before, across and after two to the 32 transactions."""
    age(own_postgres, BOUNDARY - 40)
    async with pipeline(own_postgres.url(), redis_url) as pipe:
        relay = await pipe.loaded(batch=2)
        first = await pipe.source.look()
        long = await pipe.begin()
        await pipe.write(long, "long", 1)
        for seq in range(1, 31):
            lower, higher = await pipe.begin(), await pipe.begin()
            await pipe.write(higher, "higher", seq)  # runs, and is in no snapshot's list
            await pipe.write(lower, "lower", seq)
            await lower.execute("commit")
            await pipe.settle(relay)
            await higher.execute("commit")
            await lower.close()
            await higher.close()
        await pipe.write(long, "long", 2)
        await long.execute("commit")
        await pipe.settle(relay)
        last = relay.state.main.base
        assert first.next_xid < BOUNDARY < last.snapshot.xmin
        every = list(range(1, 31))
        assert await pipe.seqs() == {"long": [1, 2], "lower": every, "higher": every}
