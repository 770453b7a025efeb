"""A Starlette program behind uvicorn, with the middleware three times: /orders is work in
a transaction, /impatient too, but is soon given up without its client, and
/payments has a lease. Arguments: psycopg or asyncpg, seconds of
the lease. It prints its port.

A request has a key of the effect, and what to do: see act().
"""

import asyncio
import sys
from datetime import timedelta

import asyncpg
import psycopg_pool
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from idempotency_pg import Failed
from idempotency_pg.asgi import IdempotencyMiddleware

DRIVER, LEASE_S = sys.argv[1:]
pool = None


def insert(effect):
    """In both drivers."""
    return f"INSERT INTO effects VALUES ('{effect}')"


async def open_gate(name):
    """Waits until a test opens the gate."""
    while True:
        async with pool.acquire() if DRIVER == "asyncpg" else pool.connection() as conn:
            query = f"SELECT count(*) FROM gates WHERE name = '{name}'"
            count = await (conn.fetchval(query) if DRIVER == "asyncpg" else first(conn, query))
        if count:
            return
        await asyncio.sleep(0.02)


async def first(conn, query):
    return (await (await conn.execute(query)).fetchone())[0]


async def act(do, effect):
    """The answer of a request."""
    if do == "gate":
        await open_gate(effect)
    elif do == "gate, then raise":
        try:
            await open_gate(effect)
        except asyncio.CancelledError:
            raise RuntimeError("instead of a cancellation") from None
    elif do == "gate, then answer":
        try:
            await open_gate(effect)
        except asyncio.CancelledError:
            pass
    elif do == "fail":
        raise Failed({"no": "HTTP"})
    elif do == "redirect":
        return Response(status_code=303, headers={"Location": "/orders/17"})
    elif do == "large refusal":
        return Response(b"x" * 5000, 400)
    elif do == "raise":
        raise RuntimeError("of the program")
    elif do == "wrong header":
        return Response(headers={"Location": "/a\r\nSet-Cookie: b"})
    elif do == "forbid":
        raise HTTPException(403, "not yours")
    elif do == "unavailable":
        return JSONResponse({"do": do}, 503)
    elif do == "conflict":
        return JSONResponse({"do": do}, 409)
    elif do == "large":
        return Response(b"x" * 5000)
    elif do == "large stream":
        return StreamingResponse(chunks(), 200)
    elif do == "binary":
        return Response(bytes(range(256)), media_type="application/octet-stream")
    elif do == "links":
        response = Response(b"linked", 201, media_type="text/html")
        response.raw_headers += [(b"Link", b"</1>; rel=next"), (b"Link", b"</2>; rel=last")]
        return response
    elif do == "background":
        return JSONResponse({"do": do}, background=BackgroundTask(open_gate, effect))
    response = JSONResponse({"effect": effect}, 201, headers={"X-Order": "17", "Location": "/orders/17"})
    response.set_cookie("a", "1", path="/orders")
    response.set_cookie("b", "2")
    return response


async def chunks():
    for _ in range(50):
        yield b"y" * 100


async def order(request):
    body = await request.json()
    await request.scope["idempotency_pg"].execute(insert(body["effect"]))
    if body["do"] == "fail in work":
        raise Failed
    return await act(body["do"], body["effect"])


async def payment(request):
    body = await request.json()
    held = request.scope["idempotency_pg"]

    async def work(conn):
        await conn.execute(insert(body["effect"]))
        if body["do"] == "fail in work":
            raise Failed

    held.with_answer(work)
    return await act(body["do"], body["effect"])


async def plain(request):
    return JSONResponse({"body": (await request.body()).decode()})


def account_of(scope):
    for name, value in scope["headers"]:
        if name == b"x-account":
            return value.decode()
    return None


async def account_later(scope):
    return account_of(scope)


def with_keys(route, account, **options):
    app = Starlette(routes=[route, Route("/plain", plain, methods=["POST", "GET"])])
    app.add_middleware(
        IdempotencyMiddleware, pool=lambda: pool, account=account, max_answer=4000, max_body=10000, **options
    )
    return app


orders = with_keys(
    Route("/new", order, methods=["POST", "PATCH"]),
    account_of,
    documentation="https://shop.example/keys",
)
impatient = with_keys(
    Route("/new", order, methods=["POST"]),
    account_of,
    close_timeout=timedelta(seconds=0.1),
)
payments = with_keys(
    Route("/new", payment, methods=["POST"]),
    account_later,
    lease=lambda scope: timedelta(seconds=float(LEASE_S)),
    required=False,
)
app = Starlette(
    routes=[Mount("/orders", orders), Mount("/impatient", impatient), Mount("/payments", payments)],
)


async def main():
    global pool
    if DRIVER == "asyncpg":
        pool = await asyncpg.create_pool(min_size=1, max_size=30)
    else:
        pool = psycopg_pool.AsyncConnectionPool(min_size=1, max_size=30, open=False)
        await pool.open(wait=True)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    print("listening", server.servers[0].sockets[0].getsockname()[1])
    await task
    await pool.close()


asyncio.run(main())
