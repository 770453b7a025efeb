"""A program of a user with strict types, which mypy checks; it is not run."""

from datetime import timedelta
from typing import Any

import psycopg
import psycopg_pool
from typing_extensions import assert_type

from idempotency_pg import Claim, Outcome, Result, aio, claim, complete, consume, lease, transaction, webhook_receiver
from idempotency_pg.asgi import IdempotencyMiddleware, Receive, Scope, Send


def work(conn: psycopg.Connection[Any]) -> dict[str, int]:
    conn.execute("SELECT 1")
    return {"order": 1}


def handle(conn: psycopg.Connection[Any], event: dict[str, Any]) -> None:
    conn.execute("SELECT 1")


def use(pool: "psycopg_pool.ConnectionPool", conn: psycopg.Connection[Any]) -> None:
    claimed = claim(conn, "key", lease=timedelta(seconds=40))
    assert_type(claimed, Claim)
    assert_type(claimed.outcome, Outcome)
    complete(conn, "key", claimed.owned_token, {"any": ["JSON"]})
    assert_type(transaction(pool, "key", work), Result)
    assert_type(transaction(conn, "key", work), Result)
    consume(pool, "queue", "id", work)
    with lease(pool, "key") as held:
        held.commit(work)
    assert_type(webhook_receiver(pool, "whsec_", handle, scope="shop")({}, b""), int)


async def later(conn: psycopg.AsyncConnection[Any]) -> list[int]:
    return [1]


async def use_later(pool: "psycopg_pool.AsyncConnectionPool", conn: psycopg.AsyncConnection[Any]) -> None:
    assert_type(await aio.claim(conn, "key"), Claim)
    assert_type(await aio.transaction(pool, "key", later), Result)
    async with aio.lease(pool, "key") as held:
        await held.commit(later)


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    pass


def middleware(pool: "psycopg_pool.AsyncConnectionPool") -> IdempotencyMiddleware:
    return IdempotencyMiddleware(app, pool, lambda scope: "ann", lease=timedelta(seconds=40))
