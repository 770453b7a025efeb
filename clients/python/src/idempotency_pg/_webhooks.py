"""Signatures of Standard Webhooks 1.0: symmetric ones, version v1."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta

TOLERANCE = timedelta(minutes=5)

_PREFIX = "whsec_"


class InvalidSignature(Exception):
    """The request is not from an owner of the secret, or is too old."""


def _sign(secret: str, signed: bytes) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError("the secret is not base64") from error
    return base64.b64encode(hmac.digest(key, signed, hashlib.sha256))


def verify_webhook(
    secret: str | Sequence[str],
    headers: Mapping[str, str],
    body: bytes,
    *,
    tolerance: timedelta = TOLERANCE,
) -> str:
    """Returns the webhook-id of a request that was signed with the secret, or
    with one of several. Raises InvalidSignature for any other."""
    lower = {name.lower(): value for name, value in headers.items()}
    try:
        id, at, signatures = (lower[f"webhook-{name}"] for name in ("id", "timestamp", "signature"))
    except KeyError as error:
        raise InvalidSignature(f"the header {error} is missing") from None
    if not re.fullmatch("[0-9]{1,15}", at) or abs(time.time() - int(at)) > tolerance.total_seconds():
        raise InvalidSignature("the timestamp is too old or too new")

    signed = f"{id}.{at}.".encode() + body
    secrets = [secret] if isinstance(secret, str) else secret
    expected = [b"v1," + _sign(each, signed) for each in secrets]
    given = [signature.encode() for signature in signatures.split(" ")]
    if not any(hmac.compare_digest(one, other) for one in given for other in expected):
        raise InvalidSignature("no signature matches")
    return id


# A final failure is acknowledged: the sender cannot do anything about it.
STATUS = {"completed": 204, "failed": 204, "mismatch": 422}

UNVERIFIED = 401
ELSEWHERE = 503
