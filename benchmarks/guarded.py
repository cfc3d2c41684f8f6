"""`@idempotent` on Redis in sync code, as a worker: `python guarded.py REDIS_URL`.

In a process of its own, as its rival is: what else a process holds makes every round trip slower.
"""

import sys
from itertools import count

import redis
from worker import serve

from inbox import RedisStore, idempotent


def main(url: str) -> None:
    client = redis.Redis.from_url(url)

    @idempotent(store=RedisStore(client), ttl=300, lease=60)
    def create_invoice(user: int, amount: int = 100) -> dict[str, int]:
        return {"user": user, "amount": amount}

    def bare() -> None:
        key = f"bare-sync:{next(users)}"
        client.set(key, "running", nx=True, px=60_000)
        client.set(key, b'{"user":1,"amount":100}', px=300_000)

    users = count(1)
    serve(
        {
            "bare": bare,
            "first": lambda: create_invoice(next(users)),
            "again": lambda: create_invoice(0),
        }
    )


if __name__ == "__main__":
    main(sys.argv[1])
