"""What the leases of the synchronous and the asynchronous functions share: whose
the key is, and what an error says about that."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Generic, TypeVar

from ._claims import RENEWALS, Claim, KeyNotFound, KeyNotInProgress, LeaseLost, Outcome

AnyPool = TypeVar("AnyPool")


def break_connection(conn: Any) -> None:
    """Ends the wait for the server on a connection of psycopg."""
    with suppress(Exception), socket.fromfd(conn.fileno(), socket.AF_INET, socket.SOCK_STREAM) as wire:
        wire.shutdown(socket.SHUT_RDWR)


def already_ended() -> KeyNotInProgress:
    return KeyNotInProgress("this lease has completed the key before, or has let it fail")


class LeaseState(Generic[AnyPool]):
    claim: Claim
    _until: float  # by the monotonic clock

    def __init__(
        self,
        pool: AnyPool,
        key: str,
        *,
        scope: str,
        request: str | None,
        lease: timedelta,
        ttl: timedelta | None,
        wait: bool,
    ) -> None:
        self._pool = pool
        self._key = key
        self._scope = scope
        self._lease = lease
        self._options: dict[str, Any] = {"scope": scope, "request": request, "lease": lease, "ttl": ttl, "wait": wait}
        self._every = lease.total_seconds() / RENEWALS
        self._lost: Exception | None = None
        self._ended = False
        self._failure: BaseException | None = None  # of the last commit(), complete() or fail()
        self._saved: Claim | None = None  # how a renewal has found the key ended

    @property
    def outcome(self) -> Outcome:
        return self.claim.outcome

    @property
    def claimed(self) -> bool:
        """Whether the key is this program's: only then do the work."""
        return self.claim.outcome == "claimed"

    @property
    def ended(self) -> bool:
        """Whether the key was completed or has failed, by this program."""
        return self._ended

    @property
    def lost(self) -> bool:
        """Whether another claimer has the key, or may have it, since the lease ran
        out before it could be renewed. Look at it during long work; an async with
        block is cancelled then."""
        if not self.claimed or self._ended:
            return False
        if self._lost is None and time.monotonic() >= self._until:
            self._lost = TimeoutError("the lease has run out, and could not be renewed")
        return self._lost is not None

    def check(self) -> None:
        """Raises LeaseLost if the lease is lost."""
        if self.lost:
            raise LeaseLost(str(self._lost)) from self._lost

    def _extend(self, start: float) -> None:
        self._until = start + self._lease.total_seconds()

    def _is_fresh(self, start: float) -> bool:
        """Whether a lease whose claim was sent at this time can be counted from then.
        If the answer was slow, the claim may have waited for another transaction, or
        its lease may be over: only a renewal tells."""
        return time.monotonic() - start < self._every

    @contextmanager
    def _noticing_loss(self) -> Iterator[None]:
        """For statements that name our token."""
        try:
            yield
        except (LeaseLost, KeyNotFound) as error:
            self._lost = error if isinstance(error, LeaseLost) else LeaseLost(str(error))
            raise self._lost from error.__cause__

    def _saved_answer(self, outcome: Outcome) -> Any:
        """Of a key that has ended before, in the way in which the caller wants to end
        it: its own call may have succeeded without an answer of the server."""
        saved, self._failure = self._saved, None
        if saved is None or saved.outcome != outcome:
            raise already_ended()
        return saved.response
