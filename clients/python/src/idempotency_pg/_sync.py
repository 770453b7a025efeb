"""The functions for psycopg 3.

A pool is one of psycopg_pool, or any other object whose connection() is a context
manager with a connection.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

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
    own_errors,
    pause_s,
    replay_of,
)
from ._lease import LeaseState, already_ended, break_connection

if TYPE_CHECKING:
    import psycopg

    Connection: TypeAlias = psycopg.Connection[Any]


class Pool(Protocol):
    def connection(self, timeout: float | None = None) -> AbstractContextManager[Connection]: ...


# ---------------------------------------------------------------------------
# The functions of SQL
# ---------------------------------------------------------------------------


def _row(conn: Connection, sql: str, *values: object) -> tuple[Any, ...]:
    from psycopg.rows import tuple_row

    with own_errors(), conn.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(sql.encode(), values).fetchone()
    assert row is not None
    return row


def claim(
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
    return claim_of(_row(conn, CLAIM, key, scope, lease, request, ttl, wait))


def complete(
    conn: Connection,
    key: str,
    token: int,
    response: object = None,
    *,
    scope: str = "",
    ttl: timedelta | None = None,
) -> None:
    """Completes a claimed key, and saves the answer."""
    _row(conn, COMPLETE, key, token, encode(response), scope, ttl)


def fail(
    conn: Connection,
    key: str,
    token: int,
    error: object = None,
    *,
    scope: str = "",
    retry: bool = True,
) -> None:
    """Frees a claimed key or, with retry=False, lets it fail for good."""
    _row(conn, FAIL, key, token, encode(error), scope, retry)


def renew(
    conn: Connection,
    key: str,
    token: int,
    lease: timedelta | None = None,
    *,
    scope: str = "",
) -> datetime:
    """Extends a lease, counted from now, and returns when it ends."""
    return cast(datetime, _row(conn, RENEW, key, token, lease, scope)[0])


# ---------------------------------------------------------------------------
# Work in one transaction
# ---------------------------------------------------------------------------


@contextmanager
def _begin(source: Pool | Connection) -> Iterator[Connection]:
    """A transaction of its own; a savepoint would not be committed."""
    import psycopg
    from psycopg.pq import TransactionStatus as Status

    if not isinstance(source, psycopg.Connection):
        with source.connection() as conn, conn.transaction():
            yield conn
        return
    if source.info.transaction_status in (Status.ACTIVE, Status.INTRANS, Status.INERROR):
        raise in_transaction()
    with source.transaction():
        yield source


def _give_up(source: Pool | Connection, key: str, answer: object, scope: str, **options: Any) -> Result:
    """The error has rolled back the claim with the work: claims the key again, and
    lets it fail for good, unless another caller was faster."""
    with _begin(source) as conn:
        claimed = claim(conn, key, scope=scope, **options)
        if claimed.outcome != "claimed":
            return replay_of(claimed)
        fail(conn, key, claimed.owned_token, answer, scope=scope, retry=False)
        return Result("failed", decode(encode(answer)), False, claimed.attempt)


def _try(
    source: Pool | Connection,
    key: str,
    work: Callable[[Connection], object],
    scope: str,
    **options: Any,
) -> Result:
    try:
        with _begin(source) as conn:
            claimed = claim(conn, key, scope=scope, **options)
            if claimed.outcome != "claimed":
                return replay_of(claimed)
            with in_work():
                response = work(conn)
            # Also without an answer: it is refused if work has hidden an error,
            # after which COMMIT would silently be a rollback.
            complete(conn, key, claimed.owned_token, response, scope=scope)
            return Result("completed", decode(encode(response)), False, claimed.attempt)
    except Failed as failure:
        return _give_up(source, key, failure.answer, scope, **options)


def transaction(
    source: Pool | Connection,
    key: str,
    work: Callable[[Connection], object],
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
            return _try(source, key, work, scope, **options)
        except Exception as error:
            if not is_worth_repeating(error):
                raise
        time.sleep(pause_s(failures))
    return _try(source, key, work, scope, **options)


def consume(
    source: Pool | Connection,
    scope: str,
    id: str,
    work: Callable[[Connection], object],
    *,
    request: str | None = None,
    ttl: timedelta | None = None,
    tries: int = 1,
) -> Result:
    """Processes a message once, although its broker delivers it at least once.
    Acknowledge the message after that. An error leaves the message unprocessed:
    give it back. Raise Failed in work if no other try can succeed. The ttl has to be
    as long as the broker can deliver the message again."""
    return transaction(source, id, work, scope=scope, request=request, ttl=ttl, tries=tries)


def webhook_receiver(
    source: Pool | Connection,
    secret: str | Sequence[str],
    work: Callable[[Connection, Any], object],
    *,
    scope: str,
    ttl: timedelta = EVENT_TTL,
    tolerance: timedelta = _webhooks.TOLERANCE,
) -> Callable[[Mapping[str, str], bytes], int]:
    """Returns a function that takes the headers and the body of a request, and
    returns the status to answer: 401 if the signature is wrong, 204 after
    work(conn, event) was done once. An error is the caller's 500."""

    def receive(headers: Mapping[str, str], body: bytes) -> int:
        try:
            id = _webhooks.verify_webhook(secret, headers, body, tolerance=tolerance)
        except _webhooks.InvalidSignature:
            return _webhooks.UNVERIFIED
        event = json.loads(body)
        result = consume(source, scope, id, lambda conn: work(conn, event), request=body.decode(), ttl=ttl)
        return _webhooks.STATUS.get(result.outcome, _webhooks.ELSEWHERE)

    return receive


# ---------------------------------------------------------------------------
# Work outside the database
# ---------------------------------------------------------------------------


@contextmanager
def _statements(pool: Pool, limit_s: float) -> Iterator[Connection]:
    """A connection on which each statement is committed by itself, so that the row
    of the key is not locked while a client hangs. If the server does not answer in
    time, the connection is broken, since libpq would wait without a limit."""
    from psycopg.pq import TransactionStatus as Status

    with pool.connection(timeout=limit_s) as conn:
        autocommit = conn.autocommit
        conn.autocommit = True
        is_broken = False

        def give_up() -> None:
            nonlocal is_broken
            is_broken = True
            break_connection(conn)

        timer = threading.Timer(limit_s, give_up)
        timer.daemon = True
        timer.start()
        try:
            yield conn
        finally:
            timer.cancel()
            timer.join()
            if is_broken:
                conn.close()
            elif conn.info.transaction_status == Status.IDLE:
                conn.autocommit = autocommit


class Lease(LeaseState[Pool]):
    """A key that this program owns during a with block; see lease()."""

    def __init__(self, pool: Pool, key: str, **options: Any) -> None:
        super().__init__(pool, key, **options)
        self._stop = threading.Event()

    def __enter__(self) -> Lease:
        start = time.monotonic()
        with _begin(self._pool) as conn:
            self.claim = claim(conn, self._key, **self._options)
        self._extend(start)
        if self.claimed:
            if not self._is_fresh(start):
                self._make_sure()
            threading.Thread(target=self._keep, name=f"lease of {self._key}", daemon=True).start()
        return self

    def _make_sure(self) -> None:
        """Renews the lease before the block begins. Another claimer may have taken the
        key over before the answer to the claim came."""
        try:
            with self._noticing_loss():
                if not self._renew():
                    raise LeaseLost("the key has ended before the answer to its claim came")
        except LeaseLost:
            raise
        except BaseException:
            self._free()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.claimed:
            return
        try:
            if isinstance(error, Failed) and not self._ended:
                self.fail(error.answer)
            elif error is None and not self._ended and self._failure is None:
                if isinstance(self._lost, IdempotencyError):
                    self.check()
                self.complete()  # also after a loss by the clock: the token decides
        finally:
            self._stop.set()
            if not self._ended and not self.lost:
                self._free()

    def commit(self, work: Callable[[Connection], object]) -> Any:
        """Commits the last changes and the answer that work(conn) returns in one
        transaction, and returns the answer. If the key was taken over, raises
        LeaseLost, and nothing is changed. A transaction that failed for a passing
        reason is repeated, with work."""
        return self._end(COMPLETE, work, None)

    def complete(self, response: object = None) -> Any:
        """Completes the key without any other change."""
        return self.commit(lambda conn: response)

    def fail(self, answer: object = None) -> Any:
        """Lets the key fail for good, with an answer for later claims."""
        return self._end(FAIL, lambda conn: answer, False)

    def _end(self, sql: str, work: Callable[[Connection], object], last: object) -> Any:
        if self._failure is not None and may_have_committed(self._failure):
            if self._ended or self._has_ended(self._failure):
                return self._saved_answer(ENDS[sql])
        if self._ended:
            raise already_ended()
        answer: str | None = None
        has_committed = False

        def once() -> None:
            nonlocal answer, has_committed
            with self._pool.connection() as conn:
                with conn.transaction():
                    with in_work():
                        answer = encode(work(conn))
                    with self._noticing_loss():
                        _row(conn, sql, self._key, self.claim.owned_token, answer, self._scope, last)
                has_committed = self._ended = True

        for failures in range(COMMIT_TRIES):
            try:
                once()
                break
            except BaseException as error:
                if error is self._lost:
                    raise
                if has_committed and isinstance(error, Exception):
                    break  # the pool has failed after the COMMIT
                self._failure = error
                if not is_worth_repeating(error) or failures == COMMIT_TRIES - 1:
                    raise
                if self._has_ended(error):
                    return self._saved_answer(ENDS[sql])
        self._failure = None
        return decode(answer)

    def _has_ended(self, failure: BaseException) -> bool:
        """Whether a COMMIT has ended the key, although it raised this error. Asks the
        server until the lease runs out."""
        if not may_have_committed(failure):
            return False
        tries = 0
        while True:
            try:
                with self._noticing_loss():
                    if not self._renew():
                        self._ended = True
                    return self._ended
            except Exception as error:
                if not is_worth_repeating(error):
                    raise
            self.check()
            time.sleep(pause_s(tries))
            tries += 1

    def _renew(self) -> bool:
        """Extends the lease. False: the key was ended with our token."""
        with _statements(self._pool, self._every) as conn:
            start = time.monotonic()
            try:
                renew(conn, self._key, self.claim.owned_token, self._lease, scope=self._scope)
            except KeyNotInProgress as error:
                if self._stop.is_set():
                    raise LeaseLost("the block has ended") from error
                # Completed, failed or freed, which only a claim tells.
                with suppress(Undone):
                    with conn.transaction():
                        claimed = claim(conn, self._key, scope=self._scope, wait=False)
                        raise Undone
                if claimed.outcome in ("completed", "failed"):
                    # If it was freed, another owner may have ended it meanwhile. This
                    # raises LeaseLost then.
                    with suppress(KeyNotInProgress):
                        renew(conn, self._key, self.claim.owned_token, self._lease, scope=self._scope)
                    self._saved = claimed
                    return False
                raise LeaseLost("the key was freed") from error
            self._extend(start)
            return True

    def _keep(self) -> None:
        """The thread that renews the lease until it is lost or not needed."""
        pause = self._every
        while not self._stop.wait(pause) and not self._ended and not self.lost:
            pause = self._every
            try:
                if not self._renew():
                    self._ended = True
            except IdempotencyError as error:
                self._lost = error
            except Exception:
                pause = min(self._every, RENEWAL_PAUSE_S)

    def _free(self) -> None:
        """Lets the next claimer try at once; if this fails, the lease runs out."""
        try:
            with _statements(self._pool, self._every) as conn:
                fail(conn, self._key, self.claim.owned_token, scope=self._scope)
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
    """A context manager that owns a key for work outside the database.

    The lease is committed before the block begins, and a thread renews it. In the
    block, look at claimed first. End the work with commit(), complete() or fail();
    without one of these, the key is completed without an answer. An error frees
    the key for the next try; Failed lets it fail for good.
    """
    return Lease(pool, key, scope=scope, request=request, lease=lease, ttl=ttl, wait=wait)
