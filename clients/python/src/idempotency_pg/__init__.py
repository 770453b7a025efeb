"""Idempotency keys in PostgreSQL transactions, with psycopg 3.

The same functions for async programs are in idempotency_pg.aio; the middlewares
in idempotency_pg.asgi and idempotency_pg.django.
"""

from ._claims import (
    AnswerTooLarge,
    Claim,
    Failed,
    IdempotencyError,
    KeyNotFound,
    KeyNotInProgress,
    LeaseLost,
    Outcome,
    Result,
    ScopeMoved,
    is_worth_repeating,
    sqlstate,
)
from ._sync import Lease, claim, complete, consume, fail, lease, renew, transaction, webhook_receiver
from ._webhooks import InvalidSignature, verify_webhook

__version__ = "1.1.0"

__all__ = [
    "AnswerTooLarge",
    "Claim",
    "Failed",
    "IdempotencyError",
    "InvalidSignature",
    "KeyNotFound",
    "KeyNotInProgress",
    "Lease",
    "LeaseLost",
    "Outcome",
    "Result",
    "ScopeMoved",
    "claim",
    "complete",
    "consume",
    "fail",
    "is_worth_repeating",
    "lease",
    "renew",
    "sqlstate",
    "transaction",
    "verify_webhook",
    "webhook_receiver",
]
