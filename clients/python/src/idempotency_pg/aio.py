"""The functions for async programs, with psycopg 3 or asyncpg.

A connection is a psycopg.AsyncConnection or an asyncpg.Connection, and a pool one
of psycopg_pool.AsyncConnectionPool or asyncpg.Pool.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, Union, cast

from . import _webhooks
from ._claims import (
    CLAIM,
    COMMIT_TRIES,
    COMPLETE,
    ENDS,
    EVENT_TTL,
    FAIL,
    LEASE,
    RENEW,
    RENEWAL_PAUSE_S,
    Claim,
    Failed,
    IdempotencyError,
    KeyNotInProgress,
    LeaseLost,
    Result,
    Undone,
    claim_of,
    decode,
    encode,
    in_transaction,
    in_work,
    is_worth_repeating,
    may_have_committed,
    numbered,
    own_errors,
    pause_s,
    replay_of,
)
from ._lease import LeaseState, already_ended, break_connection

if TYPE_CHECKING:
    import asyncpg
    import psycopg

    Connection: TypeAlias = Union[psycopg.AsyncConnection[Any], asyncpg.Connection, asyncpg.pool.PoolConnectionProxy]


class PsycopgPool(Protocol):
    def connection(self, timeout: float | None = None) -> AbstractAsyncContextManager[Any]: ...


class AsyncpgPool(Protocol):
    def acquire(self, *, timeout: float | None = None) -> AbstractAsyncContextManager[Any]: ...


Pool: TypeAlias = PsycopgPool | AsyncpgPool

# The connection is of the driver of the pool.
Work: TypeAlias = Callable[[Any], Awaitable[object]]


# ---------------------------------------------------------------------------
# What the drivers do differently
# ---------------------------------------------------------------------------


async def _row(conn: Any, sql: str, *values: object) -> tuple[Any, ...]:
    with own_errors():
        if hasattr(conn, "fetchrow"):
            return tuple(await conn.fetchrow(numbered(sql), *values))

        from psycopg.rows import tuple_row

        async with conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(sql.encode(), values)
            return cast(tuple[Any, ...], await cursor.fetchone())


def _connection(pool: Any, timeout: float | None = None) -> AbstractAsyncContextManager[Any]:
    take = pool.acquire if hasattr(pool, "acquire") else pool.connection
    return cast(AbstractAsyncContextManager[Any], take(timeout=timeout))


def _is_in_transaction(conn: Any) -> bool:
    if hasattr(conn, "is_in_transaction"):
        return cast(bool, conn.is_in_transaction())

    from psycopg.pq import TransactionStatus as Status

    return conn.info.transaction_status in (Status.ACTIVE, Status.INTRANS, Status.INERROR)


@asynccontextmanager
async def begin(source: Any) -> AsyncIterator[Any]:
    """A transaction of its own; a savepoint would not be committed."""
    if not hasattr(source, "cursor"):
        async with _connection(source) as conn, conn.transaction():
            yield conn
        return
    if _is_in_transaction(source):
        raise in_transaction()
    async with source.transaction():
        yield source


# ---------------------------------------------------------------------------
# The functions of SQL
# ---------------------------------------------------------------------------


async def claim(
    conn: Connection,
    key: str,
    *,
    scope: str = "",
    request: str | None = None,
    lease: timedelta | None = None,
    ttl: timedelta | None = None,
    wait: bool = True,
) -> Claim:
    """Claims a key, or returns the outcome of an earlier claim."""
    return claim_of(await _row(conn, CLAIM, key, scope, lease, request, ttl, wait))


async def complete(
    conn: Connection,
    key: str,
    token: int,
    response: object = None,
    *,
    scope: str = "",
    ttl: timedelta | None = None,
) -> None:
    """Completes a claimed key, and saves the answer."""
    await _row(conn, COMPLETE, key, token, encode(response), scope, ttl)


async def fail(
    conn: Connection,
    key: str,
    token: int,
    error: object = None,
    *,
    scope: str = "",
    retry: bool = True,
) -> None:
    """Frees a claimed key or, with retry=False, lets it fail for good."""
    await _row(conn, FAIL, key, token, encode(error), scope, retry)


async def renew(
    conn: Connection,
    key: str,
    token: int,
    lease: timedelta | None = None,
    *,
    scope: str = "",
) -> datetime:
    """Extends a lease, counted from now, and returns when it ends."""
    return cast(datetime, (await _row(conn, RENEW, key, token, lease, scope))[0])


# ---------------------------------------------------------------------------
# Work in one transaction
# ---------------------------------------------------------------------------


async def give_up(source: Pool | Connection, key: str, answer: object, scope: str, **options: Any) -> Result:
    """The error has rolled back the claim with the work: claims the key again, and
    lets it fail for good, unless another caller was faster."""
    async with begin(source) as conn:
        claimed = await claim(conn, key, scope=scope, **options)
        if claimed.outcome != "claimed":
            return replay_of(claimed)
        await fail(conn, key, claimed.owned_token, answer, scope=scope, retry=False)
        return Result("failed", decode(encode(answer)), False, claimed.attempt)


async def _try(source: Pool | Connection, key: str, work: Work, scope: str, **options: Any) -> Result:
    try:
        async with begin(source) as conn:
            claimed = await claim(conn, key, scope=scope, **options)
            if claimed.outcome != "claimed":
                return replay_of(claimed)
            with in_work():
                response = await work(conn)
            # Also without an answer: it is refused if work has hidden an error,
            # after which COMMIT would silently be a rollback.
            await complete(conn, key, claimed.owned_token, response, scope=scope)
            return Result("completed", decode(encode(response)), False, claimed.attempt)
    except Failed as failure:
        return await give_up(source, key, failure.answer, scope, **options)


async def transaction(
    source: Pool | Connection,
    key: str,
    work: Work,
    *,
    scope: str = "",
    request: str | None = None,
    ttl: timedelta | None = None,
    wait: bool = True,
    tries: int = 1,
) -> Result:
    """Does work(conn) once for the key, in the transaction that claims it, and
    saves the answer that work returns. After an error nothing is changed.

    With tries, a transaction that failed for a passing reason is repeated. If the
    connection broke during COMMIT, the next claim of the key tells the outcome.
    """
    options = {"request": request, "ttl": ttl, "wait": wait}
    for failures in range(tries - 1):
        try:
            return await _try(source, key, work, scope, **options)
        except Exception as error:
            if not is_worth_repeating(error):
                raise
        await asyncio.sleep(pause_s(failures))
    return await _try(source, key, work, scope, **options)


async def consume(
    source: Pool | Connection,
    scope: str,
    id: str,
    work: Work,
    *,
    request: str | None = None,
    ttl: timedelta | None = None,
    tries: int = 1,
) -> Result:
    """Processes a message once, although its broker delivers it at least once.
    Acknowledge the message after that. An error leaves the message unprocessed:
    give it back. Raise Failed in work if no other try can succeed. The ttl has to be
    as long as the broker can deliver the message again."""
    return await transaction(source, id, work, scope=scope, request=request, ttl=ttl, tries=tries)


def webhook_receiver(
    source: Pool | Connection,
    secret: str | Sequence[str],
    work: Callable[[Any, Any], Awaitable[object]],
    *,
    scope: str,
    ttl: timedelta = EVENT_TTL,
    tolerance: timedelta = _webhooks.TOLERANCE,
) -> Callable[[Mapping[str, str], bytes], Awaitable[int]]:
    """Returns a function that takes the headers and the body of a request, and
    returns the status to answer: 401 if the signature is wrong, 204 after
    work(conn, event) was done once. An error is the caller's 500."""

    async def receive(headers: Mapping[str, str], body: bytes) -> int:
        try:
            id = _webhooks.verify_webhook(secret, headers, body, tolerance=tolerance)
        except _webhooks.InvalidSignature:
            return _webhooks.UNVERIFIED
        event = json.loads(body)
        result = await consume(source, scope, id, lambda conn: work(conn, event), request=body.decode(), ttl=ttl)
        return _webhooks.STATUS.get(result.outcome, _webhooks.ELSEWHERE)

    return receive


# ---------------------------------------------------------------------------
# Work outside the database
# ---------------------------------------------------------------------------


CANCELLATION_LOOK_S = 0.1


@contextmanager
def _broken_by_cancellation(conn: Any) -> Iterator[None]:
    """asyncpg does not give a connection back before the server has answered, which
    may be never. psycopg closes it."""
    try:
        yield
    except asyncio.CancelledError:
        if hasattr(conn, "terminate"):
            conn.terminate()
        raise


@contextmanager
def _not_waiting(conn: Any) -> Iterator[None]:
    """psycopg 3.2 raises a cancellation only after the server has answered, which may
    be never. If the connection breaks instead, it raises that error, and the
    cancellation would be lost. So this looks whether the task is being cancelled."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    if task is None or hasattr(conn, "terminate"):
        yield
        return
    cancelling, before = task.cancelling, task.cancelling()
    timer: asyncio.TimerHandle

    def look() -> None:
        nonlocal timer
        if cancelling() > before:
            break_connection(conn)
        else:
            timer = loop.call_later(CANCELLATION_LOOK_S, look)

    timer = loop.call_later(CANCELLATION_LOOK_S, look)
    try:
        yield
    except Exception:
        if cancelling() > before:
            raise asyncio.CancelledError from None
        raise
    finally:
        timer.cancel()


@asynccontextmanager
async def _transaction(conn: Any) -> AsyncIterator[None]:
    """A transaction that does not wait for the server when it is cancelled: asyncpg
    would send ROLLBACK, and then raise its own error on the broken connection."""
    cancelled: asyncio.CancelledError | None = None
    try:
        with _broken_by_cancellation(conn), ExitStack() as committing:
            async with conn.transaction():
                try:
                    with _broken_by_cancellation(conn):
                        yield
                except asyncio.CancelledError as error:
                    cancelled = error
                    raise
                committing.enter_context(_not_waiting(conn))
    except Exception:
        if cancelled is not None:
            raise cancelled from None
        raise


@asynccontextmanager
async def _statements(pool: Pool, limit_s: float) -> AsyncIterator[Any]:
    """A connection on which each statement is committed by itself, so that the row
    of the key is not locked while a client hangs. The wait for it has a limit of its
    own, since psycopg_pool before 3.1.7 loses the connection of a task that is
    cancelled during this wait. A cancellation does not end a statement of psycopg
    3.2, which then waits for the server, so its connection is broken instead."""
    async with _connection(pool, limit_s) as conn:
        if hasattr(conn, "fetchrow"):
            async with asyncio.timeout(limit_s):
                with _broken_by_cancellation(conn):
                    yield conn
            return
        from psycopg.pq import TransactionStatus as Status

        autocommit = conn.autocommit
        await conn.set_autocommit(True)
        is_broken = False

        def give_up() -> None:
            nonlocal is_broken
            is_broken = True
            break_connection(conn)

        timer = asyncio.get_running_loop().call_later(limit_s, give_up)
        try:
            yield conn
        finally:
            timer.cancel()
            if is_broken:
                await conn.close()
            elif conn.info.transaction_status == Status.IDLE:
                await conn.set_autocommit(autocommit)


class Lease(LeaseState[Pool]):
    """A key that this program owns during an async with block; see lease()."""

    def __init__(self, pool: Pool, key: str, **options: Any) -> None:
        super().__init__(pool, key, **options)
        self._keeper: asyncio.Task[None] | None = None
        self._is_idle = False  # the keeper is waiting for its next renewal
        self._is_over = False  # the block has ended
        self._alarm: asyncio.TimerHandle | None = None
        self._cancels = 0  # of the block, by this lease

    async def __aenter__(self) -> Lease:
        start = time.monotonic()
        async with begin(self._pool) as conn:
            self.claim = await claim(conn, self._key, **self._options)
        self._body = asyncio.current_task()
        self._cancelling = self._body.cancelling() if self._body else 0
        self._extend(start)
        if self.claimed:
            if not self._is_fresh(start):
                await self._make_sure()
            self._set_alarm()
            self._keeper = asyncio.create_task(self._keep(), name=f"lease of {self._key}")
        return self

    async def _make_sure(self) -> None:
        """Renews the lease before the block begins. Another claimer may have taken the
        key over before the answer to the claim came."""
        try:
            with self._noticing_loss():
                if not await self._renew():
                    raise LeaseLost("the key has ended before the answer to its claim came")
        except LeaseLost:
            raise
        except BaseException:
            await self._free()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._keeper is None:
            return
        try:
            if isinstance(error, Failed) and not self._ended:
                await self.fail(error.answer)
            elif error is None and not self._ended and self._failure is None:
                if isinstance(self._lost, IdempotencyError):
                    self.check()
                await self.complete()  # also after a loss by the clock: the token decides
        except asyncio.CancelledError as cancelled:
            error = cancelled
            raise
        finally:
            self._is_over = True
            if self._alarm is not None:
                self._alarm.cancel()
            if self._is_idle:
                self._keeper.cancel()
            if not self._ended and not self.lost:
                await self._free()
            # As asyncio.timeout() does: a cancellation that was not ours goes on.
            if self._cancels and self._body is not None:
                for _ in range(self._cancels):
                    left = self._body.uncancel()
                if left <= self._cancelling and isinstance(error, asyncio.CancelledError):
                    self.check()

    async def commit(self, work: Work) -> Any:
        """Commits the last changes and the answer that work(conn) returns in one
        transaction, and returns the answer. If the key was taken over, raises
        LeaseLost, and nothing is changed. A transaction that failed for a passing
        reason is repeated, with work."""
        return await self._end(COMPLETE, work, None)

    async def complete(self, response: object = None) -> Any:
        """Completes the key without any other change."""

        async def answer(conn: Any) -> object:
            return response

        return await self.commit(answer)

    async def fail(self, answer: object = None) -> Any:
        """Lets the key fail for good, with an answer for later claims."""

        async def error(conn: Any) -> object:
            return answer

        return await self._end(FAIL, error, False)

    async def _end(self, sql: str, work: Work, last: object) -> Any:
        if self._failure is not None and may_have_committed(self._failure):
            if self._ended or await self._has_ended(self._failure):
                return self._saved_answer(ENDS[sql])
        if self._ended:
            raise already_ended()
        answer: str | None = None
        has_committed = False

        async def once() -> None:
            nonlocal answer, has_committed
            async with _connection(self._pool) as conn:
                async with _transaction(conn):
                    with in_work():
                        answer = encode(await work(conn))
                    with self._noticing_loss(), _not_waiting(conn):
                        await _row(conn, sql, self._key, self.claim.owned_token, answer, self._scope, last)
                has_committed = self._ended = True

        for failures in range(COMMIT_TRIES):
            try:
                await once()
                break
            except BaseException as error:
                if error is self._lost:
                    raise
                if has_committed and isinstance(error, Exception):
                    break  # the pool has failed after the COMMIT
                self._failure = error
                if not is_worth_repeating(error) or failures == COMMIT_TRIES - 1:
                    raise
                if await self._has_ended(error):
                    return self._saved_answer(ENDS[sql])
        self._failure = None
        return decode(answer)

    async def _has_ended(self, failure: BaseException) -> bool:
        """Whether a COMMIT has ended the key, although it raised this error. Asks the
        server until the lease runs out."""
        if not may_have_committed(failure):
            return False
        tries = 0
        while True:
            try:
                with self._noticing_loss():
                    if not await self._renew():
                        self._ended = True
                    return self._ended
            except Exception as error:
                if not is_worth_repeating(error):
                    raise
            self.check()
            await asyncio.sleep(pause_s(tries))
            tries += 1

    async def _renew(self) -> bool:
        """Extends the lease. False: the key was ended with our token."""
        async with _statements(self._pool, self._every) as conn:
            start = time.monotonic()
            try:
                await renew(conn, self._key, self.claim.owned_token, self._lease, scope=self._scope)
            except KeyNotInProgress as error:
                if self._is_over:
                    raise LeaseLost("the block has ended") from error
                # Completed, failed or freed, which only a claim tells.
                with suppress(Undone):
                    async with _transaction(conn):
                        claimed = await claim(conn, self._key, scope=self._scope, wait=False)
                        raise Undone
                if claimed.outcome in ("completed", "failed"):
                    # If it was freed, another owner may have ended it meanwhile. This
                    # raises LeaseLost then.
                    with suppress(KeyNotInProgress):
                        await renew(conn, self._key, self.claim.owned_token, self._lease, scope=self._scope)
                    self._saved = claimed
                    return False
                raise LeaseLost("the key was freed") from error
            self._extend(start)
            return True

    async def _keep(self) -> None:
        """The task that renews the lease until it is lost or not needed. It is not
        cancelled while it uses a connection: see _statements()."""
        pause = self._every
        while not self._is_over and not self._ended and not self.lost:
            self._is_idle = True
            await asyncio.sleep(pause)
            self._is_idle = False
            pause = self._every
            try:
                if not await self._renew():
                    self._ended = True
            except IdempotencyError as error:
                self._lost = error
                self._cancel()
            except Exception:
                pause = min(self._every, RENEWAL_PAUSE_S)

    def _set_alarm(self) -> None:
        """Cancels the block when the lease runs out, whatever a renewal waits for."""
        loop = asyncio.get_running_loop()
        left = self._until - time.monotonic()
        self._alarm = loop.call_later(left, self._set_alarm if left > 0 else self._cancel)

    def _cancel(self) -> None:
        """Cancels the block. Comes again, since asyncio.wait_for() of Python before
        3.12 swallows a cancellation that comes together with its result, and drivers
        use that."""
        if self._alarm is not None:
            self._alarm.cancel()
        if self._is_over or self._body is None or not self.lost:
            return
        self._cancels += self._body.cancel()
        self._alarm = asyncio.get_running_loop().call_later(self._every, self._cancel)

    async def _free(self) -> None:
        """Lets the next claimer try at once; if this fails, the lease runs out."""
        try:
            async with _statements(self._pool, self._every) as conn:
                await fail(conn, self._key, self.claim.owned_token, scope=self._scope)
        except Exception:
            pass


def lease(
    pool: Pool,
    key: str,
    *,
    scope: str = "",
    request: str | None = None,
    lease: timedelta = LEASE,
    ttl: timedelta | None = None,
    wait: bool = True,
) -> Lease:
    """An async context manager that owns a key for work outside the database.

    The lease is committed before the block begins, and a task renews it. In the
    block, look at claimed first. End the work with commit(), complete() or fail();
    without one of these, the key is completed without an answer. An error frees
    the key for the next try; Failed lets it fail for good. If the lease is lost,
    the block is cancelled, and LeaseLost is raised.
    """
    return Lease(pool, key, scope=scope, request=request, lease=lease, ttl=ttl, wait=wait)
