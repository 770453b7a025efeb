"""What both middlewares share: the header Idempotency-Key of
draft-ietf-httpapi-idempotency-key-header, and answers as they are saved.

The library for JavaScript saves answers in the same form, and has the same
fingerprint of requests, so that each can replay the answers of the other.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from ._claims import Claim, Result

KEY_CHARACTERS_MAX = 255
METHODS = frozenset({"POST", "PATCH"})
BODY_BYTES_MAX = 1024 * 1024

# A string of structured fields (RFC 8941): in quotes, with \" and \\ as escapes. Its
# parameters are ignored. Two such headers arrive joined by a comma, and do not match.
_CHARACTERS = r'(?:[ !#-\[\]-~]|\\["\\])'
_NUMBER = r"-?[0-9]{1,15}(?:\.[0-9]{1,3})?"
_TOKEN = r"[A-Za-z*][A-Za-z0-9_!#$%&'*+.^|~:/`-]*"
_BYTES = ":[A-Za-z0-9+/=]*:"
_BOOLEAN = r"\?[01]"
_VALUE = f'"{_CHARACTERS}*"|{_NUMBER}|{_TOKEN}|{_BYTES}|{_BOOLEAN}'
_PARAMETER = f"; *[a-z*][a-z0-9_.*-]*(?:=(?:{_VALUE}))?"
_KEY = re.compile(f' *"({_CHARACTERS}+)"(?:{_PARAMETER})* *')

# These are about one connection, one moment or one session.
_NOT_SAVED = frozenset(
    "connection content-length date keep-alive proxy-authenticate proxy-connection set-cookie te trailer transfer-encoding"
    " upgrade".split()
)

# What a header may have (RFC 9110). Servers refuse others when the work is committed.
_HEADER_NAME = re.compile(r"[A-Za-z0-9_!#$%&'*+.^|~`-]+")
_HEADER_VALUE = re.compile(r"[\t -~\x80-\xff]*")

# What a path has unquoted, besides letters, digits and "_.-~" (RFC 3986).
_PATH_CHARACTERS = "/:@!$&'()*+,;="


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def with_header(self, name: str, value: str) -> Answer:
        return replace(self, headers=(*self.headers, (name, value)))

    def to_json(self) -> dict[str, Any]:
        """As it is saved: {"status", "headers", "body"}. The headers are pairs of a name
        in lower case and a value. A body that is not UTF-8, or has the character 0,
        which jsonb does not allow, is saved as "base64" instead."""
        named = ([name.lower(), value] for name, value in self.headers)
        headers = [header for header in named if header[0] not in _NOT_SAVED]
        for header in headers:
            if not _is_header(header):
                raise ValueError(f"the header {header[0]!r} of the answer has characters that cannot be sent")
        saved: dict[str, Any] = {"status": self.status, "headers": headers}
        try:
            text = self.body.decode()
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            return {**saved, "base64": base64.b64encode(self.body).decode()}
        return {**saved, "body": text}

    @classmethod
    def from_json(cls, saved: Any) -> Answer | None:
        """None if it is not an answer: other functions save any JSON."""
        if not isinstance(saved, dict):
            return None
        status, headers, text = saved.get("status"), saved.get("headers"), saved.get("base64", saved.get("body"))
        if not (type(status) is int and 200 <= status <= 999 and isinstance(headers, list) and isinstance(text, str)):
            return None
        if not all(_is_header(header) for header in headers):
            return None
        body = base64.b64decode(text) if "base64" in saved else text.encode()
        return cls(status, tuple((name, value) for name, value in headers), body)


def _is_header(header: object) -> bool:
    if not (isinstance(header, list) and len(header) == 2 and all(isinstance(part, str) for part in header)):
        return False
    name, value = header
    return bool(_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value))


def parse_key(header: str) -> str | None:
    match = _KEY.fullmatch(header)
    if match is None:
        return None
    key = re.sub(r"\\(.)", r"\1", match[1])
    return key if len(key) <= KEY_CHARACTERS_MAX else None


def target_of(path: str, query: str, *, is_quoted: bool) -> str:
    """The target of a request, without a question mark if there is no query, since
    WSGI and ASGI do not tell whether there was one. is_quoted: the path is as the
    client has sent it."""
    quoted = path if is_quoted else quote(path, safe=_PATH_CHARACTERS)
    return f"{quoted}?{query}" if query else quoted


def fingerprint(method: str, target: str, body: bytes) -> str:
    """Of the whole request. A hash, since a body need not be text."""
    return hashlib.sha256(f"{method} {target}\n".encode() + body).hexdigest()


# ---------------------------------------------------------------------------
# Answers of the middleware
# ---------------------------------------------------------------------------


def problem(status: int, title: str, detail: str, type: str, **more: object) -> Answer:
    """A problem of RFC 9457."""
    body = json.dumps({"type": type, "title": title, "detail": detail, **more}).encode()
    return Answer(status, (("content-type", "application/problem+json"),), body)


def missing_key(documentation: str) -> Answer:
    return problem(
        400,
        "Idempotency-Key is missing",
        "This operation requires the header Idempotency-Key.",
        documentation,
    )


def malformed_key(documentation: str) -> Answer:
    return problem(
        400,
        "Idempotency-Key is malformed",
        f"It is a string in quotes, of at most {KEY_CHARACTERS_MAX} characters.",
        documentation,
    )


def outstanding(documentation: str, retry_s: int = 1) -> Answer:
    return problem(
        409,
        "A request is outstanding for this Idempotency-Key",
        "The first request with this key has not been answered yet.",
        documentation,
    ).with_header("retry-after", str(retry_s))


def too_large_to_repeat(answer: Answer, documentation: str) -> Answer:
    """Saved in place of an answer of which the work cannot be undone."""
    effect = "was refused" if is_refusal(answer.status) else "took effect, and was answered"
    return problem(
        410,
        "The answer was too large to be kept",
        f"The request {effect} with status {answer.status}.",
        documentation,
        original_status=answer.status,
    )


def body_too_large(bytes_max: int) -> Answer:
    return problem(413, "The body is too large", f"It has at most {bytes_max} bytes.", "about:blank")


def answer_for(claim: Claim | Result, documentation: str) -> Answer:
    """The answer to requests whose key was claimed before."""
    saved = Answer.from_json(claim.response)
    if saved is not None and claim.outcome in ("completed", "failed"):
        return saved.with_header("idempotent-replayed", "true")
    if claim.outcome == "in_progress":
        rest = claim.retry_after
        return outstanding(documentation, 1 if rest is None else max(1, math.ceil(rest.total_seconds())))
    return problem(
        422,
        "Idempotency-Key is already used",
        "The key was used for another request. Use a new one.",
        documentation,
    )


def is_refusal(status: int) -> bool:
    """Whether the program has refused the request: then its changes are undone and,
    if the answer is kept, the key has failed for good."""
    return status >= 400


def is_kept(status: int) -> bool:
    """Whether an answer is saved: an error of the server frees the key."""
    return status < 500
