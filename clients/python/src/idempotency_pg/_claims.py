"""What the synchronous and the asynchronous functions share: the SQL, the
dataclasses, and the meaning of errors.

No driver is imported here, so that the package works with any one of them.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

Outcome = Literal["claimed", "in_progress", "completed", "failed", "mismatch"]

# ---------------------------------------------------------------------------
# Errors
# ---------------------------------------------------------------------------


class IdempotencyError(Exception):
    """An error of class ID; its cause is the error of the driver."""

    sqlstate: str


class LeaseLost(IdempotencyError):
    """The key was taken over: drop the result, the new owner does the work."""

    sqlstate = "ID001"


class KeyNotFound(IdempotencyError):
    """The key is not claimed, was forgotten or has expired."""

    sqlstate = "ID002"


class KeyNotInProgress(IdempotencyError):
    """The key was completed or has failed before."""

    sqlstate = "ID003"


class ScopeMoved(IdempotencyError):
    """The scope has moved to another database."""

    sqlstate = "ID007"


class Failed(Exception):
    """Raised by work that can never succeed: what it has changed is undone, and
    the key fails for good, with an answer for those who repeat the request."""

    def __init__(self, answer: object = None) -> None:
        super().__init__(answer)
        self.answer = answer


class Undone(Exception):
    """Rolls a transaction back, or frees a lease, without being an error."""


class AnswerTooLarge(Exception):
    """The answer has more bytes than the middleware may save."""


UNDEFINED_FUNCTION = "42883"
NOT_FOUND = (
    "The library calls idem_claim and the other functions without a schema. The database needs the extension"
    " idempotency, in a schema that is in the search_path of the connection."
)

_ERRORS = {error.sqlstate: error for error in (LeaseLost, KeyNotFound, KeyNotInProgress, ScopeMoved)}


def sqlstate(error: BaseException | None) -> str | None:
    """The SQLSTATE of an error of psycopg, asyncpg, psycopg2, Django or this
    package; None if it has none, such as that of a broken connection."""
    for source in (error, getattr(error, "__cause__", None)):
        code = getattr(source, "sqlstate", None) or getattr(source, "pgcode", None)
        if isinstance(code, str):
            return code
    return None


@contextmanager
def own_errors() -> Iterator[None]:
    """Raises an error of class ID as an exception of this package."""
    try:
        yield
    except Exception as error:
        state = sqlstate(error)
        if state == UNDEFINED_FUNCTION:
            error.add_note(NOT_FOUND)
        known = _ERRORS.get(state or "")
        if known is None or isinstance(error, IdempotencyError):
            raise
        raise known(str(error)) from error


def may_have_committed(error: BaseException) -> bool:
    """Whether COMMIT may have taken effect, although it raised this error: there
    was no answer, or the program has stopped waiting for it."""
    return is_worth_repeating(error) or not isinstance(error, Exception)


_OF_WORK = "_idempotency_pg_of_work"


@contextmanager
def in_work() -> Iterator[None]:
    """Marks an OSError that is not of a connection, such as FileNotFoundError or the
    timeout of an HTTP client: work raises it, not the database."""
    try:
        yield
    except OSError as error:
        if not isinstance(error, ConnectionError):
            setattr(error, _OF_WORK, True)
        raise


def is_worth_repeating(error: BaseException) -> bool:
    """Whether another try can succeed: there was no answer, the server stops or
    starts (08, 53, 57P), there was a deadlock (class 40), or a replica has answered
    during a failover (25006; a claim needs the primary). An OSError of work is not,
    unless it is a ConnectionError."""
    state = sqlstate(error)
    if state is not None:
        return state[:2] in ("08", "40", "53") or state.startswith("57P") or state == "25006"
    if hasattr(error, _OF_WORK):
        return False
    broken: list[type[BaseException]] = [OSError]
    for driver, names in (("psycopg", ("OperationalError",)), ("asyncpg", ("InterfaceError", "InternalClientError"))):
        module = sys.modules.get(driver)
        broken += [getattr(module, name) for name in names if hasattr(module, name)]
    return isinstance(error, tuple(broken))


def in_transaction() -> RuntimeError:
    return RuntimeError("the connection is in a transaction: commit it before, and connect with autocommit=True")


FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0


def pause_s(tries: int) -> float:
    """How long to wait after so many tries."""
    return min(FIRST_PAUSE_S * 2.0**tries, LONGEST_PAUSE_S)


# ---------------------------------------------------------------------------
# Answers
# ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claim:
    """The row that idem_claim returns."""

    outcome: Outcome
    token: int | None
    attempt: int | None
    response: Any
    retry_after: timedelta | None

    @property
    def owned_token(self) -> int:
        """The token of a claim whose outcome is "claimed"."""
        if self.token is None:
            raise RuntimeError(f"the outcome of the claim is {self.outcome}")
        return self.token


@dataclass(frozen=True, slots=True)
class Result:
    """What became of the work for a key.

    outcome is "completed" (response is the answer), "failed" (response is the
    saved error), "in_progress" or "mismatch". replayed: the response is that of
    an earlier call.
    """

    outcome: Outcome
    response: Any
    replayed: bool
    attempt: int | None = None
    retry_after: timedelta | None = None


def encode(response: object) -> str | None:
    return None if response is None else json.dumps(response, allow_nan=False)


def decode(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def claim_of(row: tuple[Any, ...]) -> Claim:
    outcome, token, attempt, response, retry_s = row
    retry_after = None if retry_s is None else timedelta(seconds=retry_s)
    return Claim(outcome, token, attempt, decode(response), retry_after)


def replay_of(claim: Claim) -> Result:
    replayed = claim.outcome in ("completed", "failed")
    return Result(claim.outcome, claim.response, replayed, claim.attempt, claim.retry_after)


# ---------------------------------------------------------------------------
# Statements
# ---------------------------------------------------------------------------

# JSON goes to and fro as text, and intervals come back as seconds, whatever
# codecs and row factories the connection has.
CLAIM = (
    "SELECT outcome::text, token, attempt, response::text, extract(epoch FROM retry_after)::float8"
    " FROM idem_claim(%s, scope => %s, lease => %s::interval, request => %s, ttl => %s::interval, wait => %s)"
)
COMPLETE = "SELECT idem_complete(%s, %s, response => %s::text::jsonb, scope => %s, ttl => %s::interval)"
FAIL = "SELECT idem_fail(%s, %s, error => %s::text::jsonb, scope => %s, retry => %s)"
RENEW = "SELECT idem_renew(%s, %s, lease => %s::interval, scope => %s)"

# The outcome of a later claim.
ENDS: dict[str, Outcome] = {COMPLETE: "completed", FAIL: "failed"}


@functools.cache
def numbered(sql: str) -> str:
    """The statement with the parameters of asyncpg."""
    first, *others = sql.split("%s")
    return first + "".join(f"${number}{text}" for number, text in enumerate(others, 1))


# An event of the outbox can arrive again for the three days of its schedule,
# and as a dead letter that is sent again for 30 more days.
EVENT_TTL = timedelta(days=40)

LEASE = timedelta(seconds=40)

# A lease is renewed three times before it would run out; if the server does not
# answer, more often.
RENEWALS = 3
RENEWAL_PAUSE_S = 0.5

# How often the last transaction of a lease is tried.
COMMIT_TRIES = 5
