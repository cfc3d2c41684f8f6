"""One statement a turn: the end of a window and the first rows of all lanes in it."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from projector.daemon import Projector
from projector.position import Moment, Origin, Position
from projector.settings import Settings
from projector.snapshot import Snapshot
from projector.source import postgres
from projector.source.batch import Row
from projector.source.survey import first_pages
from support.lanes import Pipeline, pipeline
from support.waiting import until

KEYS = [f"key-{number}" for number in range(40)]


@pytest.fixture
async def wide(quiet_database, redis_url):
    async with pipeline(quiet_database, redis_url, lanes=8) as made:
        yield made


async def turn(pipe: Pipeline, relays) -> list[str]:
    """As the daemon does it; what was asked of the database."""
    asked: list[str] = []

    def note(query) -> None:
        asked.append(query.query)

    pipe.source._connection.add_query_logger(note)
    engine = create_async_engine("postgresql+asyncpg://")  # never asked
    projector = Projector(engine, pipe.redis, Settings(name=pipe.name))
    projector._relays = {relay.lane: relay for relay in relays}
    await projector._turn(pipe.source)
    await asyncio.sleep(0)  # the logger is called soon
    pipe.source._connection.remove_query_logger(note)
    source = pipe.source
    reads = {source._survey, source._late, source._fresh, postgres.sql.WINDOW}
    return [query for query in asked if query in reads]  # the driver has questions of its own


async def test_events_of_all_lanes_are_read_by_one_statement(wide):
    """Fresh ones, and late ones too."""
    relays = [await wide.loaded(lane) for lane in range(8)]
    writer, slow = await wide.connect(), await wide.begin()
    for key in KEYS:
        await wide.write(slow, key, 1)
    await wide.write(writer, "first", 1)
    assert len(await turn(wide, relays)) == 1
    assert await wide.seqs() == {"first": [1]}
    await slow.execute("commit")
    for key in KEYS:
        await wide.write(writer, key, 2)
    assert len(await turn(wide, relays)) == 1
    assert await wide.seqs() == {"first": [1], **{key: [1, 2] for key in KEYS}}
    assert len(await turn(wide, relays)) == 1


GAP = "select setval('outbox_id_seq', last_value + $1::int) from outbox_id_seq"
FILL = """
insert into outbox (lane, event_id, topic, type, key, seq, data, content_type)
values ($1, gen_random_uuid(), 't', 'c', $2, $3, convert_to(repeat('x', $4), 'UTF8'), 'text/plain')
"""


@pytest.mark.parametrize(("count", "apart", "size"), [(150, 0, 1), (5, 2000, 1), (5, 0, 20_000)])
async def test_what_is_too_much_for_a_survey_is_read_by_its_lane(wide, count, apart, size):
    """Many rows, rows far apart, large rows; fresh, and late ones too: each once, in order."""
    relays = [await wide.loaded(lane) for lane in range(8)]
    writer, slow = await wide.connect(), await wide.begin()
    for seq in range(1, count + 1):
        await slow.execute(FILL, 3, "slow", seq, size)
        await writer.execute(FILL, 3, "k", seq, size)
        await writer.execute(GAP, apart)
    expected = {"k": list(range(1, count + 1))}
    await settled(wide, relays, expected)
    await slow.execute("commit")
    await settled(wide, relays, {**expected, "slow": list(range(1, count + 1))})


async def settled(pipe: Pipeline, relays, expected: dict[str, list[int]]) -> None:
    before = None
    while before != (before := [relay.state for relay in relays]):
        await turn(pipe, relays)
    assert await pipe.seqs() == expected


async def test_thousands_of_open_transactions_are_not_asked_about_one_by_one(wide, monkeypatch):
    """Each lane looks for itself then, and finds the same."""
    monkeypatch.setattr(postgres, "MANY", 2)
    relays = [await wide.loaded(lane) for lane in range(8)]
    open_ = [await wide.begin() for _ in range(3)]
    for number, connection in enumerate(open_):
        await wide.write(connection, "k", number + 1)
    await wide.write(await wide.connect(), "other", 1)
    await turn(wide, relays)
    assert await wide.seqs() == {"other": [1]}
    for connection in open_:
        await connection.execute("commit")
    await turn(wide, relays)
    assert await wide.seqs() == {"other": [1], "k": [1, 2, 3]}


async def test_lanes_that_wait_for_the_same_transactions_do_not_hide_others(wide, monkeypatch):
    """Two bases share most of what ran in them; all of it is asked about, or each lane looks."""
    monkeypatch.setattr(postgres, "MANY", 4)
    writer, _, _ = await wide.connect(), await wide.begin(), await wide.begin()
    start = (await wide.loaded()).state.main
    early = start.opened(await wide.source.look()).closed()
    slow = await wide.begin()
    await slow.execute(FILL, 3, "slow", 1, 1)
    await writer.execute(FILL, 3, "k", 1, 1)
    late = start.opened(await wide.source.look()).advanced(2).closed()
    await slow.execute("commit")
    for positions in ({1: early, 3: late}, {3: late, 1: early}):
        assert 3 in (await wide.source.survey(positions, 1_000)).lanes


async def test_a_commit_that_is_under_way_is_found_by_the_same_survey(pipe):
    """Nothing to publish, but somebody is writing: once that is flushed it looks again."""
    slow = await pipe.begin()
    await pipe.write(slow, "k", 1)

    class Source(postgres.PostgresSource):
        async def _await_flush(self, lsn: str) -> None:
            await slow.execute("commit")
            await super()._await_flush(lsn)

    await pipe.reconnect(Source)
    relay = await pipe.loaded()
    await (await pipe.connect()).execute("select pg_logical_emit_message(false, '', 'unflushed')")
    assert await pipe.turn(relay) == 1


async def test_a_record_that_ends_with_its_page_is_not_waited_for(pipe):
    """PostgreSQL then says that it will write behind the next page's header, which is not there."""
    connection = pipe.source._connection

    async def write(size: int) -> int:
        await connection.execute("select pg_logical_emit_message(false, '', repeat('x', $1))", size)
        return await connection.fetchval("select pg_current_wal_insert_lsn() - '0/0'")

    async def flushed() -> bool:  # by PostgreSQL itself, page by page
        return await connection.fetchval("select pg_current_wal_flush_lsn() - '0/0'") >= end - 24

    at = [await write(1_000) % 8192 for _ in range(10)]
    overhead = min(two - one for one, two in pairwise(at) if two > one) - 1_000
    while at[-1] > 6_000:
        at.append(await write(1_000) % 8192)
    end = await write(int(8192 - at[-1] - overhead))
    assert end % 8192 == 24
    await until(flushed)
    asked: list[str] = []

    def note(query) -> None:
        asked.append(query.query)

    connection.add_query_logger(note)
    await pipe.source.look()
    await asyncio.sleep(0)
    assert asked == [postgres.sql.WINDOW]


async def test_a_page_for_another_state_is_not_published(pipe):
    """The lane went on between the survey and its turn: what was read along is read again."""
    relay, writer = await pipe.loaded(), await pipe.connect()
    await pipe.write(writer, "k", 1)
    survey = await pipe.source.survey({0: relay.state.main}, 1_000)
    await pipe.settle(relay)
    await pipe.write(writer, "k", 2)
    again = await pipe.source.survey({0: relay.state.main}, 1_000)
    await relay.advance(again.moment, survey.lanes[0])
    assert await pipe.seqs() == {"k": [1, 2]}


async def test_the_connection_is_left_as_it_was(pipe):
    """Its plans are made once for all while a source has it."""
    connection = pipe.source._connection
    assert await connection.fetchval("show plan_cache_mode") == "force_generic_plan"
    await pipe.source.close()
    assert await connection.fetchval("show plan_cache_mode") == "auto"


async def test_a_pooler_keeps_nothing_of_ours(pipe):
    """It gives clients process ids of its own making, and its connections to others."""

    class BehindPooler(asyncpg.Connection):
        def get_server_pid(self) -> int:
            return 1

    url = pipe.database.set(drivername="postgresql").render_as_string(hide_password=False)
    connection = await asyncpg.connect(url, connection_class=BehindPooler)
    await postgres.PostgresSource.connect(connection, "outbox")
    assert await connection.fetchval("show plan_cache_mode") == "auto"
    await connection.close()


def found(late: bool, lane: int, xid: int, row_id: int, more: bool = False, data: bytes = b""):
    row = Row(row_id, "e", "t", "c", "k", None, data, "j", None, None, None, None, "now")
    return (late, xid if late else lane, lane, xid, more, *row)


UPTO = Moment(Snapshot(30, 30), 30)


def at(head: int, *running: int, xmax: int = 20, next_xid: int = 20) -> Position:
    base = Moment(Snapshot(min((*running, xmax)), xmax, running), next_xid)
    return Position(Origin("s", "t"), "e", base, head).opened(UPTO)


def ids(pages) -> dict[int, list[int] | None]:
    return {lane: page and [row.id for row in page.page.rows] for lane, page in pages.items()}


def test_a_late_row_belongs_to_lanes_whose_base_missed_it():
    """Listed, or at xmax and above; above the head it is fresh and counts once."""
    lanes = {0: at(50, 15), 1: at(50), 2: at(50, next_xid=22)}
    rows = [found(True, lane, 15, 40 + lane) for lane in lanes]
    rows += [found(True, lane, 21, 45 + lane) for lane in lanes]
    rows += [found(True, 0, 15, 60), found(False, 0, 15, 60)]
    assert ids(first_pages(rows, lanes, 100)) == {0: [40, 60], 2: [47]}


def test_a_transaction_with_more_late_rows_leaves_its_lanes_to_themselves():
    """Only those whose base missed it."""
    lanes = {0: at(50, 15), 1: at(50)}
    rows = [found(True, 0, 15, 40, more=True), found(False, 1, 25, 60)]
    assert ids(first_pages(rows, lanes, 100)) == {0: None, 1: [60]}


@pytest.mark.parametrize(
    ("rows", "limit", "closed"),
    [
        ([found(False, 0, 25, 60), found(False, 0, 25, 61)], 3, True),
        ([found(False, 0, 25, 60), found(False, 0, 25, 61)], 2, False),
        ([found(False, 0, 25, 60, more=True)], 3, False),
        ([found(True, 0, 15, 40), found(False, 0, 25, 60), found(False, 0, 25, 61)], 3, True),
    ],
)
def test_a_window_is_closed_when_nothing_is_left(rows, limit, closed):
    """A page that may go on leaves it open behind its last row."""
    page = first_pages(rows, {0: at(50, 15)}, limit)[0].page
    assert page.position.upto == (None if closed else UPTO)
    assert page.position.published_to == page.rows[-1].id
