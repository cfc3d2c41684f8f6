"""The source's statements read an index, whatever the planner believes of the table."""

from __future__ import annotations

import pytest

from support.lanes import Pipeline

ROWS = 100_000


async def burst(pipe: Pipeline) -> None:
    """A queue that is usually empty, and was so when statistics were taken."""
    connection = await pipe.connect()
    await connection.execute("vacuum analyze outbox")
    await connection.execute(
        f"""insert into outbox (lane, event_id, topic, type, key, seq, data, content_type)
        select 0, gen_random_uuid(), 't', 'c', 'k' || n % 100, n, '{{}}', 'application/json'
          from generate_series(1, {ROWS}) n"""
    )


async def plan(pipe: Pipeline, statement: str, arguments: str) -> str:
    connection = pipe.source._connection
    await connection.execute(f"prepare page as {statement}")
    lines = await connection.fetch(f"explain execute page({arguments})")
    await connection.execute("deallocate page")
    return "\n".join(line[0] for line in lines)


@pytest.mark.parametrize("cache_mode", ["force_custom_plan", "force_generic_plan"])
async def test_statistics_of_an_empty_table_scan_no_full_one(pipe, cache_mode):
    """A sudden backlog behind stale statistics is read by index, page by page."""
    await burst(pipe)
    await pipe.source._connection.execute(f"set plan_cache_mode = {cache_mode}")
    snapshot = (await pipe.source.look()).snapshot
    fresh = await plan(pipe, pipe.source._fresh, f"0, 50000, '{snapshot}', 1000, null, '{{}}'")
    late = await plan(pipe, pipe.source._late, "0, 0, 50000, 1000, '{700,701,702}', null, '{}'")
    for text, index in ((fresh, "outbox_pkey"), (late, "outbox_xid_idx")):
        assert index in text, text
        assert "Seq Scan" not in text, text
