"""The source's statements read an index, whatever the planner believes of the table."""

from __future__ import annotations

import json

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
    page = "1000, null, '{}', 2000"
    fresh = await plan(pipe, pipe.source._fresh, f"0, 50000, {page}, '{snapshot}'")
    late = await plan(pipe, pipe.source._late, f"0, 0, {page}, '{{700,701,702}}', 50000")
    survey = await plan(pipe, pipe.source._survey, "'{0,1}', '{50000,0}', 64, 1000, '{700,701}'")
    for text, index in (
        *((fresh, "outbox_pkey"), (late, "outbox_xid_idx")),
        *((survey, "outbox_pkey"), (survey, "outbox_xid_idx")),
    ):
        assert index in text, text
        assert "Seq Scan" not in text, text
        assert "Bitmap" not in survey, text  # it would collect a backlog to find its first row


async def test_a_page_costs_the_same_wherever_it_lies(pipe):
    """Behind stale statistics too: no page touches more than a few times its own rows."""
    await burst(pipe)
    snapshot = (await pipe.source.look()).snapshot
    connection = pipe.source._connection
    await connection.execute(f"prepare page as {pipe.source._fresh}")
    await connection.execute(f"prepare survey as {pipe.source._survey}")
    for after in (0, 50_000, 90_000):
        page = f"page(0, {after}, 1000, null, '{{}}', 2000, '{snapshot}')"
        survey = f"survey('{{0}}', '{{{after}}}', 64, 1000, '{{}}')"
        for statement in (page, survey):
            explain = f"explain (analyze, buffers, format json) execute {statement}"
            report = json.loads(await connection.fetchval(explain))[0]["Plan"]
            touched = report["Shared Hit Blocks"] + report["Shared Read Blocks"]
            assert touched < 500, f"{touched} blocks for a thousand rows"
