"""What is refused, what is stored, and what is said about it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
from fastapi import Depends, FastAPI, HTTPException
from prometheus_client import CollectorRegistry
from pydantic import BaseModel
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from inbox import IdempotencyMiddleware, InvalidDuration, InvalidSetting, RedisStore
from inbox.metrics import Metrics
from support.proxy import Proxy, proxy
from support.web import served, until

from .conftest import starlette


class Order(BaseModel):
    item: str


class Counter:
    """Answers as it is told, and counts."""

    def __init__(self, *answers: Response) -> None:
        self.answers = list(answers)
        self.calls = 0

    async def __call__(self, request: Request) -> Response:
        self.calls += 1
        if self.answers:
            return self.answers.pop(0)
        return PlainTextResponse(str(self.calls))

    def app(self, store: Any, **settings: Any) -> Any:
        async def handler(request: Request) -> Response:
            return await self(request)

        return starlette(handler, store, **settings)


async def test_a_missing_key_is_refused_where_it_is_required(memory):
    """400 with a link to the documentation, if there is one; other paths and methods pass."""
    counter = Counter()
    settings = {"required": True, "paths": ["/pay*"], "documentation": "https://x.test/errors"}
    async with served(counter.app(memory, **settings)) as api:
        refused = await api.post("/payments", key=None)
        assert (await api.post("/orders", key=None)).status_code == 200
        assert (await api.client.get("/payments")).status_code == 200
        assert (await api.post("/payments")).status_code == 200
    assert refused.status_code == 400
    assert refused.headers["content-type"] == "application/problem+json"
    problem = refused.json()
    assert problem.pop("detail")
    assert problem == {
        "type": "https://x.test/errors#missing-key",
        "title": "Idempotency-Key is missing",
        "status": 400,
        "code": "missing-key",
    }
    assert counter.calls == 3


async def test_a_malformed_key_is_refused(memory):
    """400, also where the key is optional: the client meant something by it."""
    counter = Counter()
    async with served(counter.app(memory)) as api:
        refused = await api.post(key="a, b")
        twice = await api.client.post("/", headers=[("Idempotency-Key", "a")] * 2)
        assert (await api.client.get("/", headers={"Idempotency-Key": "a b"})).status_code == 200
    assert (refused.status_code, twice.status_code) == (400, 400)
    assert refused.json()["type"] == "about:blank"
    assert counter.calls == 1


async def test_a_body_past_the_limit_is_refused(memory):
    """413, whether its length was said before or not; without a key there is no limit."""

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 50

    counter = Counter()
    async with served(counter.app(memory, max_body=100)) as api:
        said = await api.post(content=b"x" * 101)
        unsaid = await api.post(content=chunks())
        assert (await api.post(key=None, content=b"x" * 101)).status_code == 200
        assert (await api.post(content=b"x" * 100)).status_code == 200
    assert [(it.status_code, it.json()["code"]) for it in (said, unsaid)] == [
        (413, "body-too-large")
    ] * 2
    assert counter.calls == 2


async def test_the_application_reads_the_whole_body(memory):
    """However many pieces it came in."""

    async def chunks() -> AsyncIterator[bytes]:
        for part in (b"a", b"", b"bc"):
            yield part

    async def echo(request: Request) -> Response:
        return Response(await request.body())

    async with served(starlette(echo, memory)) as api:
        assert (await api.post(content=chunks())).content == b"abc"
        assert (await api.post(content=b"abc")).headers["idempotent-replayed"] == "true"


@pytest.mark.parametrize("status", [200, 204, 302, 400, 401, 404, 422, 499])
async def test_these_statuses_are_stored(memory, status):
    """The same request again would end the same."""
    counter = Counter(Response(status_code=status))
    async with served(counter.app(memory)) as api:
        first, second = await api.post(), await api.post()
    assert (first.status_code, second.status_code, counter.calls) == (status, status, 1)
    assert second.headers["idempotent-replayed"] == "true"


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
async def test_these_statuses_run_again(memory, status):
    """Their answer says that it was not stored."""
    counter = Counter(Response(status_code=status))
    async with served(counter.app(memory)) as api:
        first, second = await api.post(), await api.post()
    assert (first.status_code, second.status_code, counter.calls) == (status, 200, 2)
    assert first.headers["idempotency-stored"] == "false"
    assert "idempotency-stored" not in second.headers
    assert "idempotent-replayed" not in second.headers


async def test_which_statuses_are_stored_can_be_chosen(memory):
    """By a function of the status."""
    counter = Counter(Response(status_code=500), Response(status_code=404))
    async with served(counter.app(memory, is_stored=lambda status: status != 404)) as api:
        assert (await api.post(key="a")).status_code == 500
        assert (await api.post(key="a")).headers["idempotent-replayed"] == "true"
        assert (await api.post(key="b")).status_code == 404
        assert (await api.post(key="b")).status_code == 200


async def test_an_error_in_the_handler_frees_the_key(memory):
    """The server answers as it always does, and the next attempt runs."""
    calls = []

    async def handler(request: Request) -> Response:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("broken")
        return PlainTextResponse("done")

    async with served(starlette(handler, memory)) as api:
        first, second = await api.post(), await api.post()
    assert (first.status_code, second.status_code) == (500, 200)
    assert second.text == "done"


async def test_headers_of_a_connection_or_a_session_are_not_replayed(memory):
    """The first answer has them; what is stored has not."""
    answer = PlainTextResponse("x", headers={"X-Mine": "1", "WWW-Authenticate": "Basic"})
    answer.headers["Connection"] = "X-Hop"
    answer.headers["X-Hop"] = "1"
    answer.headers["Keep-Alive"] = "timeout=1"
    answer.set_cookie("session", "secret")
    async with served(Counter(answer).app(memory)) as api:
        first, second = await api.post(), await api.post()
    dropped = {"set-cookie", "www-authenticate", "x-hop", "keep-alive"}
    assert dropped <= first.headers.keys()
    assert not dropped & second.headers.keys()
    assert second.headers["x-mine"] == "1"


async def test_repeated_headers_are_replayed_in_order(memory):
    """As they were."""
    answer = PlainTextResponse("x")
    answer.headers.append("Link", "<a>")
    answer.headers.append("Link", "<b>")
    async with served(Counter(answer).app(memory)) as api:
        await api.post()
        assert (await api.post()).headers.get_list("link") == ["<a>", "<b>"]


@pytest.fixture
async def bad_network(redis_url: str) -> AsyncIterator[Proxy]:
    async with proxy(redis_url) as made:
        yield made


@pytest.fixture
async def fragile(bad_network: Proxy) -> AsyncIterator[RedisStore]:
    """A store that is away from when `bad_network` is closed."""
    once = Retry(NoBackoff(), 0)
    async with Redis.from_url(bad_network.url, retry=once) as redis:
        yield RedisStore(redis, prefix=f"{uuid4().hex}:")


async def test_without_its_store_the_middleware_refuses(bad_network, fragile):
    """503: the request was not carried out."""
    counter = Counter()
    await bad_network.close()
    async with served(counter.app(fragile)) as api:
        refused = await api.post()
        assert (await api.post(key=None)).status_code == 200
    assert (refused.status_code, refused.json()["code"]) == (503, "store-unavailable")
    assert int(refused.headers["retry-after"]) > 0
    assert counter.calls == 1


async def test_without_its_store_the_middleware_lets_pass_if_asked(bad_network, fragile):
    """The answer says that it was not stored."""
    counter = Counter()
    await bad_network.close()
    async with served(counter.app(fragile, on_outage="run")) as api:
        answers = [await api.post(), await api.post()]
    assert [answer.text for answer in answers] == ["1", "2"]
    assert {answer.headers["idempotency-stored"] for answer in answers} == {"false"}


async def test_an_answer_that_cannot_be_stored_reaches_the_client(bad_network, fragile):
    """The work is done, so the client is told; also that it was not stored."""

    async def handler(request: Request) -> Response:
        await bad_network.close()
        return PlainTextResponse("done")

    async with served(starlette(handler, fragile)) as api:
        answer = await api.post()
    assert (answer.text, answer.headers["idempotency-stored"]) == ("done", "false")


async def test_an_error_in_the_handler_is_told_also_without_the_store(bad_network, fragile, caplog):
    """The error, not that the key could not be freed."""

    async def handler(request: Request) -> Response:
        await bad_network.close()
        raise RuntimeError("broken")

    async with served(starlette(handler, fragile)) as api:
        assert (await api.post()).status_code == 500
    assert "RuntimeError: broken" in caplog.text


async def test_keys_are_not_told_to_the_log(bad_network, fragile, caplog):
    """Whatever goes wrong, at any level: a key may be all that protects an answer."""
    caplog.set_level("DEBUG", "inbox")

    async def handler(request: Request) -> Response:
        await bad_network.close()
        await until(lambda: "could not renew" in caplog.text)
        return PlainTextResponse("done")

    async with served(starlette(handler, fragile, lease=0.3)) as api:
        await api.post(key="open-sesame")
        await api.post(key="open-sesame")
    assert "could not be stored" in caplog.text
    assert "cannot guard" in caplog.text
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("inbox")]
    assert len(ours) >= 3
    assert "open-sesame" not in "".join(ours)


@pytest.mark.parametrize("on_outage", ["refuse", "run"])
@pytest.mark.parametrize("damage", ["payload", "version"])
async def test_a_record_that_cannot_be_read_fails_closed(redis_url, on_outage, damage):
    """503, and never an effect: it may have happened."""
    counter, prefix = Counter(), f"{uuid4().hex}:"
    async with (
        Redis.from_url(redis_url) as redis,
        served(counter.app(RedisStore(redis, prefix), on_outage=on_outage)) as api,
    ):
        await api.post()
        (key,) = [key async for key in redis.scan_iter(f"{prefix}*")]
        record = await redis.get(key)
        spoilt = b"9" + record[1:] if damage == "version" else record.partition(b"+")[0] + b"+\xc1"
        await redis.set(key, spoilt, keepttl=True)
        refused = await api.post()
    assert (refused.status_code, refused.json()["code"]) == (503, "record-unreadable")
    assert counter.calls == 1


async def test_a_middleware_inside_another_lets_pass(memory):
    """So a stricter one can be put around some paths of an API that has one."""
    counter = Counter()
    app = counter.app(memory)
    app.add_middleware(IdempotencyMiddleware, store=memory, paths="/pay*", required=True)
    async with served(app) as api:
        assert (await api.post("/payments", key=None)).status_code == 400
        assert (await api.post("/payments")).text == "1"
        assert (await api.post("/payments")).headers["idempotent-replayed"] == "true"
        assert (await api.post("/orders", key="o")).text == "2"
        assert (await api.post("/orders", key="o")).text == "2"


async def test_names_keep_apis_apart_in_one_store(memory):
    """The same key in two APIs is two keys."""
    one, two = Counter(), Counter()
    async with served(one.app(memory, name="one")) as a, served(two.app(memory, name="two")) as b:
        await a.post()
        assert "idempotent-replayed" not in (await b.post()).headers


async def test_the_doors_metrics(memory):
    """Misses, hits, conflicts and failures, under the name of the API."""
    registry = CollectorRegistry()
    counter = Counter(Response(status_code=500))
    async with served(counter.app(memory, name="shop", metrics=Metrics(registry))) as api:
        await api.post()
        await api.post()
        await api.post()
        await api.post(content=b"other")

    def count(outcome: str) -> float | None:
        labels = {"door": "http", "name": "shop", "outcome": outcome}
        return registry.get_sample_value("inbox_outcomes_total", labels)

    assert [count(it) for it in ("failed", "miss", "hit", "conflict", "busy")] == [1, 2, 1, 1, None]
    seconds = registry.get_sample_value(
        "inbox_processing_seconds_count", {"door": "http", "name": "shop"}
    )
    assert seconds == 2


async def test_a_fastapi_service_with_models_and_dependencies(memory):
    """Validation errors are answers like others; dependencies run once."""
    app = FastAPI()
    opened: list[str] = []

    async def session() -> AsyncIterator[str]:
        opened.append("session")
        yield "session"

    @app.post("/orders", status_code=201)
    async def place(order: Order, _: str = Depends(session)) -> Order:
        if order.item == "gone":
            raise HTTPException(404, "no such item")
        return order

    app.add_middleware(IdempotencyMiddleware, store=memory)
    async with served(app) as api:
        for key, item, status in (("a", "x", 201), ("b", "gone", 404)):
            for replayed in (False, True):
                answer = await api.post("/orders", key, json={"item": item})
                assert answer.status_code == status
                assert ("idempotent-replayed" in answer.headers) is replayed
        assert (await api.post("/orders", "c", json={})).status_code == 422
        invalid = await api.post("/orders", "c", json={})
    assert invalid.headers["content-type"] == "application/json"  # FastAPI's, not ours
    assert len(opened) == 3  # one for each key


def test_bad_settings_are_refused_at_once(memory):
    """Before the first request."""

    async def app(*_: Any) -> None: ...

    with pytest.raises(InvalidDuration):
        IdempotencyMiddleware(app, memory, ttl=0)
    with pytest.raises(InvalidDuration):
        IdempotencyMiddleware(app, memory, wait=-1)
    with pytest.raises(InvalidSetting, match="max_body"):
        IdempotencyMiddleware(app, memory, max_body=0)
    with pytest.raises(InvalidSetting, match="on_outage"):
        IdempotencyMiddleware(app, memory, on_outage="open")


async def test_json_is_replayed_byte_for_byte(memory):
    """Not parsed and written anew."""
    counter = Counter(JSONResponse({"b": 1.0, "a": "é"}))
    async with served(counter.app(memory)) as api:
        assert (
            (await api.post()).content == (await api.post()).content == b'{"b":1.0,"a":"\xc3\xa9"}'
        )
