"""A middleware for Starlette, FastAPI and other ASGI programs: requests with the
same Idempotency-Key take effect once.

    app.add_middleware(IdempotencyMiddleware, pool=pool, account=account_of)

The answer of the program is held back until it is saved and committed. What the
program does after its answer, such as background tasks, is not part of that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, MutableMapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any, TypeAlias

from . import _http
from ._claims import AnswerTooLarge, Claim, Failed, LeaseLost, Undone
from .aio import Lease, Pool, Work, begin, claim, complete, give_up, lease

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

# Where the program finds its connection or its lease, in the scope of the request.
SCOPE_KEY = "idempotency_pg"

CLOSE_TIMEOUT = timedelta(minutes=1)

# These have no body, so no length of it either.
_NULL_BODY = (204, 304)

_log = logging.getLogger("idempotency_pg")


class Held:
    """What the program finds there if the request has a lease."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self._work: Work | None = None

    def with_answer(self, work: Work) -> None:
        """Sets work(conn), which is committed in one transaction with the answer,
        if that is kept and has a status below 400."""
        self._work = work

    async def save(self, answer: _http.Answer, is_refusal: bool) -> None:
        if is_refusal:
            await self.lease.fail(answer.to_json())
            return

        async def last(conn: Any) -> object:
            if self._work is not None:
                await self._work(conn)
            return answer.to_json()

        await self.lease.commit(last)


class _Client:
    """What the client sends: its body, which was read before, and then that it has
    gone. A program may work on, since the client can come back for the answer. It
    may also stop, and never answer: its transaction must not stay open then."""

    def __init__(self, body: bytes, receive: Receive, limit: timedelta | None) -> None:
        self._messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        self._receive = receive
        self._limit = limit
        self._next: asyncio.Task[Message] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._timeout = asyncio.timeout(None)

    async def receive(self) -> Message:
        return self._messages.pop() if self._messages else await self._read()

    async def _read(self) -> Message:
        """For the program and for the time limit: both see the same message."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._receive())
        return await asyncio.shield(self._next)

    async def _give_up_later(self, limit: timedelta) -> None:
        message = await self._read()
        if message["type"] == "http.disconnect":
            self._timeout.reschedule(asyncio.get_running_loop().time() + limit.total_seconds())

    @asynccontextmanager
    async def limited(self) -> AsyncIterator[None]:
        """Cancels the program if the client has gone, and the time is over."""
        try:
            async with self._timeout:
                if self._limit is not None:
                    self._watch = asyncio.create_task(self._give_up_later(self._limit))
                yield
        except TimeoutError:
            if self._timeout.expired():
                raise self._too_late() from None
            raise
        finally:
            for task in (self._watch, self._next):
                if task is not None:
                    task.cancel()

    def answered(self) -> None:
        """The program has answered: the limit is over."""
        if self._timeout.expired():
            raise self._too_late()
        if self._watch is not None:
            self._watch.cancel()
        self._timeout.reschedule(None)

    def _too_late(self) -> TimeoutError:
        return TimeoutError(f"the client has closed the connection, and there was no answer within {self._limit}")


# Saves an answer, or undoes the work, and returns another answer to send instead.
# The flag: the answer is too large to be kept.
_End: TypeAlias = Callable[[_http.Answer, bool], Awaitable[_http.Answer | None]]


class _Exchange:
    """Holds the answer of the program back until end() is done with it. What
    follows, if it is too large, is passed on."""

    def __init__(self, client: _Client, end: _End, bytes_max: int, send: Send) -> None:
        self._client = client
        self._end = end
        self._bytes_max = bytes_max
        self._send = send
        self._start: Message = {}
        self._body = bytearray()
        self._replaced = False
        self.begun = False
        self.error: BaseException | None = None

    async def send(self, message: Message) -> None:
        if self._replaced:
            return
        if self.begun:
            return await self._send(message)
        if self.error is not None:
            raise self.error  # whatever the program made of it
        if message["type"] == "http.response.start":
            self._start = message
            return
        self._body += message.get("body", b"")
        more = message.get("more_body", False)
        if not more or len(self._body) > self._bytes_max:
            await self._finish(more)

    async def _finish(self, more: bool) -> None:
        headers = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in self._start.get("headers", ()))
        answer = _http.Answer(self._start["status"], tuple(headers), bytes(self._body))
        try:
            self._client.answered()
            other = await self._end(answer, len(answer.body) > self._bytes_max)
        except BaseException as error:
            self.error = error
            raise
        self.begun = True
        if other is not None:
            self._replaced = True
            return await send_answer(self._send, other)
        await self._send(self._start)
        await self._send({"type": "http.response.body", "body": answer.body, "more_body": more})


class IdempotencyMiddleware:
    """Parameters:

    pool           of psycopg_pool or asyncpg, or a function that returns it
    account        a function of the ASGI scope that returns the account of the
                   client, which is the scope of its keys; with None, the request
                   is passed on as it is
    lease          for work outside the database: how long a key belongs to a
                   request, or a function of the ASGI scope that returns that. By
                   default the claim is part of a transaction.
    ttl            how long answers are kept; by default idempotency.ttl
    methods        the methods that need a key
    required       False: requests without a key are passed on as they are
    keep           which statuses are kept; any other frees the key
    max_body       of a request, in bytes; beyond that 413
    max_answer     that is kept, in bytes
    close_timeout  without a lease: how long a program may work on after its client
                   has closed the connection; then its changes are undone. None: for
                   ever
    documentation  a URL, the type of the problems
    """

    def __init__(
        self,
        app: App,
        pool: Pool | Callable[[], Pool],
        account: Callable[[Scope], str | None | Awaitable[str | None]],
        *,
        lease: timedelta | None | Callable[[Scope], timedelta | None] = None,
        ttl: timedelta | None = None,
        methods: Collection[str] = _http.METHODS,
        required: bool = True,
        keep: Callable[[int], bool] = _http.is_kept,
        max_body: int = _http.BODY_BYTES_MAX,
        max_answer: int = _http.BODY_BYTES_MAX,
        close_timeout: timedelta | None = CLOSE_TIMEOUT,
        documentation: str = "about:blank",
    ) -> None:
        if close_timeout is not None and not close_timeout > timedelta(0):
            raise ValueError("close_timeout is a timedelta above 0, or None")
        self.app = app
        self.pool = pool
        self.account = account
        self.lease = lease
        self.ttl = ttl
        self.methods = methods
        self.required = required
        self.keep = keep
        self.max_body = max_body
        self.max_answer = max_answer
        self.close_timeout = close_timeout
        self.documentation = documentation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in self.methods:
            return await self.app(scope, receive, send)
        found = self.account(scope)
        account = await found if isinstance(found, Awaitable) else found
        headers = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"idempotency-key"]
        if account is None or not (headers or self.required):
            return await self.app(scope, receive, send)

        if not headers:
            return await send_answer(send, _http.missing_key(self.documentation))
        key = _http.parse_key(",".join(headers))
        if key is None:
            return await send_answer(send, _http.malformed_key(self.documentation))
        body = await self._read(receive)
        if body is None:
            return
        if len(body) > self.max_body:
            return await send_answer(send, _http.body_too_large(self.max_body))
        await self._answer(account, key, scope, body, receive, send)

    async def _read(self, receive: Receive) -> bytes | None:
        """The body, or more than its limit; None if the client is gone."""
        body = bytearray()
        more = True
        while more and len(body) <= self.max_body:
            message = await receive()
            if message["type"] != "http.request":
                return None
            body += message.get("body", b"")
            more = message.get("more_body", False)
        return bytes(body)

    async def _answer(self, account: str, key: str, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        pool = self.pool() if callable(self.pool) else self.pool
        duration = self.lease(scope) if callable(self.lease) else self.lease
        options: dict[str, Any] = {
            "scope": account,
            "request": _http.fingerprint(scope["method"], _target(scope), body),
            "ttl": self.ttl,
            "wait": False,
        }
        held: Lease | None = None
        exchange: _Exchange | None = None
        failure: Failed | None = None
        try:
            async with AsyncExitStack() as stack:
                if duration is None:
                    given = await stack.enter_async_context(begin(pool))
                    claimed = await claim(given, key, **options)
                    end = self._in_transaction(stack, given, pool, key, options, claimed)
                else:
                    held = await stack.enter_async_context(lease(pool, key, lease=duration, **options))
                    claimed = held.claim
                    given = Held(held)
                    end = self._with_lease(stack, given)

                if claimed.outcome == "claimed":
                    client = _Client(body, receive, self.close_timeout if duration is None else None)
                    exchange = _Exchange(client, end, self.max_answer, send)
                    try:
                        async with client.limited():
                            await self.app({**scope, "extensions": {}, SCOPE_KEY: given}, client.receive, exchange.send)
                        if not exchange.begun:
                            raise exchange.error or Undone
                    except Failed as error:
                        # It has no answer that could be sent again, so it frees the
                        # key, as any other error.
                        failure = error
                        raise Undone from None
            if exchange is None:
                await send_answer(send, _http.answer_for(claimed, self.documentation))
        except Undone:
            if failure is not None:
                raise failure
        except Exception as error:
            if held is None or not held.lost or (exchange is not None and exchange.begun):
                raise
            if not isinstance(error, LeaseLost):
                _log.warning("an error after the lease was lost", exc_info=error)
            await send_answer(send, _http.outstanding(self.documentation))

    def _in_transaction(
        self, stack: AsyncExitStack, conn: Any, pool: Pool, key: str, options: dict[str, Any], claimed: Claim
    ) -> _End:
        async def end(answer: _http.Answer, is_large: bool) -> _http.Answer | None:
            is_kept = self.keep(answer.status)
            if is_kept and is_large:
                raise AnswerTooLarge(f"the answer has more than {self.max_answer} bytes, and is undone")
            if is_kept and not _http.is_refusal(answer.status):
                await complete(conn, key, claimed.owned_token, answer.to_json(), scope=options["scope"])
                await stack.aclose()
                return None
            await stack.__aexit__(Undone, Undone(), None)
            if is_kept:
                result = await give_up(pool, key, answer.to_json(), **options)
                if result.outcome != "failed" or result.replayed:
                    return _http.answer_for(result, self.documentation)
            return None

        return end

    def _with_lease(self, stack: AsyncExitStack, held: Held) -> _End:
        async def end(answer: _http.Answer, is_large: bool) -> _http.Answer | None:
            if not self.keep(answer.status):
                await stack.__aexit__(Undone, Undone(), None)
                # An error of the server can be what the program made of its cancellation.
                return _http.outstanding(self.documentation) if held.lease.lost else None
            if is_large:
                _log.warning("an answer has more than %d bytes, and is not kept", self.max_answer)
            saved = _http.too_large_to_repeat(answer, self.documentation) if is_large else answer
            try:
                await held.save(saved, _http.is_refusal(answer.status))
            except LeaseLost:
                return _http.outstanding(self.documentation)
            return None

        return end


def _target(scope: Scope) -> str:
    query: bytes = scope.get("query_string", b"")
    raw: bytes = scope.get("raw_path") or b""
    path = raw.decode("latin-1") if raw else scope["path"]
    return _http.target_of(path, query.decode("latin-1"), is_quoted=bool(raw))


async def send_answer(send: Send, answer: _http.Answer) -> None:
    if answer.status not in _NULL_BODY:
        answer = answer.with_header("content-length", str(len(answer.body)))
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
