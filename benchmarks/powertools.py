"""aws-lambda-powertools' idempotency on Redis, as a worker: `python powertools.py REDIS_URL`.

Run by `benchmarks.claims` in an environment that has nothing of ours.
"""

import sys
from itertools import count

import redis
from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
from aws_lambda_powertools.utilities.idempotency.persistence.redis import (
    RedisCachePersistenceLayer,
)
from worker import serve


class Context:
    """Lets it put a time limit on running calls, as our lease does."""

    def get_remaining_time_in_millis(self) -> int:
        return 60_000


def main(url: str) -> None:
    config = IdempotencyConfig(expires_after_seconds=300)
    config.register_lambda_context(Context())

    @idempotent_function(
        data_keyword_argument="user",
        persistence_store=RedisCachePersistenceLayer(client=redis.Redis.from_url(url)),
        config=config,
    )
    def create_invoice(user: int, amount: int = 100) -> dict[str, int]:
        return {"user": user, "amount": amount}

    users = count(1)
    serve(
        {
            "first": lambda: create_invoice(user=next(users)),
            "again": lambda: create_invoice(user=0),
        }
    )


if __name__ == "__main__":
    main(sys.argv[1])
