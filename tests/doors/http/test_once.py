"""A request that is sent again has one effect and one answer, in each framework, on each store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from support.web import served, until


class Orders:
    """A handler that remembers its effects."""

    def __init__(self) -> None:
        self.placed: list[Any] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, request: Request) -> Response:
        body = await request.json()
        self.placed.append(body)
        await self.gate.wait()
        content = {"number": len(self.placed), "body": body}
        return JSONResponse(content, 201, headers={"X-Order": str(len(self.placed))})


@pytest.fixture
def orders() -> Orders:
    return Orders()


@pytest.fixture
def handler(orders: Orders) -> Any:
    async def place(request: Request) -> Response:  # FastAPI reads the annotations of a function
        return await orders(request)

    return place


async def test_the_second_answer_is_the_first_one(build, store, handler, orders):
    """Status, headers and body; the first is not marked, the second is."""
    async with served(build(handler, store)) as api:
        first = await api.post("/orders", json={"item": 1})
        second = await api.post("/orders", json={"item": 1})
    assert orders.placed == [{"item": 1}]
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.content == second.content
    assert second.headers["x-order"] == "1"
    assert second.headers["content-type"] == "application/json"
    assert "idempotent-replayed" not in first.headers
    assert "idempotency-stored" not in first.headers
    assert second.headers["idempotent-replayed"] == "true"


async def test_of_fifty_at_once_one_has_an_effect(build, store, handler, orders):
    """The others are told to come again, and get the answer when they do."""
    orders.gate.clear()
    async with served(build(handler, store)) as api:
        posts = [asyncio.create_task(api.post(json={})) for _ in range(50)]
        await until(lambda: sum(post.done() for post in posts) == 49)
        refused = [post.result() for post in posts if post.done()]
        orders.gate.set()
        answers = [await post for post in posts]
        again = await api.post(json={})
    assert orders.placed == [{}]
    assert sorted(answer.status_code for answer in answers) == [201] + [409] * 49
    assert {answer.headers["content-type"] for answer in refused} == {"application/problem+json"}
    assert {answer.headers["retry-after"] for answer in refused} == {"5"}
    assert refused[0].json()["code"] == "in-progress"
    assert again.headers["idempotent-replayed"] == "true"


async def test_of_fifty_that_wait_all_get_the_one_answer(build, store, handler, orders):
    """With `wait`, a repetition is held until the first one is done."""
    async with served(build(handler, store, wait=15)) as api:
        answers = await asyncio.gather(*[api.post(json={}) for _ in range(50)])
    assert orders.placed == [{}]
    assert {(answer.status_code, answer.content) for answer in answers} == {
        (201, answers[0].content)
    }
    assert sum("idempotent-replayed" in answer.headers for answer in answers) == 49


async def test_another_request_under_the_same_key_is_refused(build, store, handler, orders):
    """Another body, path, query or method: 422, and nothing runs."""
    async with served(build(handler, store)) as api:
        await api.post("/a/b?x=1", json={"n": 1})
        others = [
            await api.post("/a/b?x=1", json={"n": 2}),
            await api.post("/a/c?x=1", json={"n": 1}),
            await api.post("/a%2Fb?x=1", json={"n": 1}),
            await api.post("/a/b?x=2", json={"n": 1}),
            await api.client.patch("/a/b?x=1", json={"n": 1}, headers={"Idempotency-Key": "k"}),
        ]
    assert [(other.status_code, other.json()["code"]) for other in others] == [
        (422, "key-reused")
    ] * 5
    assert len(orders.placed) == 1


async def test_another_request_is_refused_also_while_the_first_runs(build, store, handler, orders):
    """At once: a wrong request does not become right by waiting."""
    orders.gate.clear()
    async with served(build(handler, store, wait=15)) as api:
        first = asyncio.create_task(api.post(json={"n": 1}))
        await until(lambda: orders.placed)
        assert (await api.post(json={"n": 2})).status_code == 422
        orders.gate.set()
        assert (await first).status_code == 201


async def test_without_a_key_every_request_runs(build, store, handler, orders):
    """As if the middleware were not there; so do methods that are not guarded."""
    async with served(build(handler, store)) as api:
        answers = [await api.post(key=None, json={}), await api.post(key=None, json={})]
        for _ in range(2):
            headers = {"Idempotency-Key": "k"}
            answers.append(await api.client.put("/", json={}, headers=headers))
    assert len(orders.placed) == 4
    for answer in answers:
        assert "idempotency-stored" not in answer.headers
        assert "idempotent-replayed" not in answer.headers


async def test_bare_and_quoted_keys_are_one(build, store, handler, orders):
    """The draft's form and the one that most clients send."""
    async with served(build(handler, store)) as api:
        await api.post(key="8e03978e-40d5", json={})
        again = await api.post(key='"8e03978e-40d5"', json={})
        await api.post(key="8E03978E-40d5", json={})  # another key: case counts
    assert again.headers["idempotent-replayed"] == "true"
    assert len(orders.placed) == 2


async def test_a_key_belongs_to_its_tenant(build, store, handler, orders):
    """The same request of two tenants is two requests; the callable may be async."""

    async def tenant(scope: Any) -> str:
        return dict(scope["headers"]).get(b"x-tenant", b"").decode()

    async with served(build(handler, store, tenant=tenant)) as api:
        for name in ("a", "b", "a", "b"):
            await api.post(json={}, headers={"X-Tenant": name})
    assert len(orders.placed) == 2
