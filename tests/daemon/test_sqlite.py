"""SQLite as the database: for small services, demos and tests."""

from __future__ import annotations

import subprocess
import sys
from uuid import uuid4

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from outbox import AUTO, Outbox
from projector import keys
from projector.connect import engine_of
from projector.daemon import Projector
from projector.settings import Settings
from support.lanes import client


async def test_events_of_a_sqlite_file_reach_their_streams(tmp_path, redis_url):
    """Once each, in order, over several drains, with rollbacks and pruned rows in between."""
    name = f"t{uuid4().hex[:10]}"
    url = f"sqlite:///{tmp_path}/shop.db"
    events = Outbox(name=name, lanes=2)
    engine = create_engine(url)
    events.metadata.create_all(engine)

    def write(count: int) -> None:
        with Session(engine) as session:
            for number in range(count):
                for key in ("a", "b", "c"):
                    events.emit(session, "changed", topic="t", key=key, data=number, seq=AUTO)
                session.rollback() if number % 4 == 3 else session.commit()

    write(10)
    relay_engine, redis = engine_of(url), client(redis_url)
    projector = Projector(relay_engine, redis, Settings(name=name, lanes=2, batch=4))
    first = await projector.drain()
    with engine.begin() as connection:
        connection.execute(events.table.delete())
    write(3)
    assert (first, await projector.drain(), await projector.drain()) == (24, 9, 0)
    found: dict[bytes, list[int]] = {}
    for lane in range(2):
        for _, entry in await redis.xrange(keys.stream(name, lane, "t")):
            found.setdefault(entry[b"subject"], []).append(int(entry[b"sequence"]))
    assert found == {key: list(range(1, 12)) for key in (b"a", b"b", b"c")}
    await redis.aclose()
    await relay_engine.dispose()
    engine.dispose()


def test_the_command_takes_a_sqlite_url(tmp_path, redis_url):
    """`projector run --once` with the same flags as for PostgreSQL."""
    name, url = f"t{uuid4().hex[:10]}", f"sqlite:///{tmp_path}/shop.db"
    options = ["--database-url", url, "--name", name]
    subprocess.run([sys.executable, "-m", "projector", "migrate", *options], check=True)
    done = subprocess.run(
        [sys.executable, "-m", "projector", "run", "--once", *options, "--redis-url", redis_url],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "published 0 events\n"


async def test_the_very_first_event_of_a_sqlite_file_goes_out(tmp_path, redis_url):
    """It does not wait for company."""
    name = f"t{uuid4().hex[:10]}"
    url = f"sqlite:///{tmp_path}/shop.db"
    events = Outbox(name=name, lanes=1)
    engine, relay_engine, redis = create_engine(url), engine_of(url), client(redis_url)
    events.metadata.create_all(engine)
    projector = Projector(relay_engine, redis, Settings(name=name, lanes=1))
    counts = []
    for _ in range(4):
        with Session(engine) as session, session.begin():
            events.emit(session, "changed", topic="t", key="k", data={})
        counts.append(await projector.drain())
    assert counts == [1, 1, 1, 1]
    await redis.aclose()
    await relay_engine.dispose()
    engine.dispose()
