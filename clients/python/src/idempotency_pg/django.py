"""A middleware for Django: requests with the same Idempotency-Key take effect
once. Its claim, the changes of the view and the answer are one transaction, on
Django's own connection.

    # shop/middleware.py, named last in MIDDLEWARE
    class ShopIdempotency(IdempotencyMiddleware):
        def account(self, request):
            return str(request.user.pk) if request.user.is_authenticated else None
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any

from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse

from . import _http
from ._claims import CLAIM, COMPLETE, FAIL, AnswerTooLarge, claim_of, encode


class IdempotencyMiddleware:
    """To be subclassed, with the method account and other values for:

    using          the database
    ttl            how long answers are kept; by default idempotency.ttl
    methods        the methods that need a key
    required       False: requests without a key are passed on as they are
    max_answer     of an answer, in bytes; beyond that AnswerTooLarge, a rollback
    documentation  a URL, the type of the problems
    """

    using: str = "default"
    ttl: timedelta | None = None
    methods: Collection[str] = _http.METHODS
    required: bool = True
    max_answer: int = _http.BODY_BYTES_MAX
    documentation: str = "about:blank"

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def account(self, request: HttpRequest) -> str | None:
        """The account of the client, which is the scope of its keys; with None,
        the request is passed on as it is."""
        raise NotImplementedError("a subclass has to have the method account")

    def keep(self, status: int) -> bool:
        """Whether an answer is kept; any other frees the key."""
        return _http.is_kept(status)

    def __call__(self, request: HttpRequest) -> HttpResponse:
        account = self.account(request) if request.method in self.methods else None
        header = request.headers.get("Idempotency-Key")
        if account is None or (header is None and not self.required):
            return self.get_response(request)
        if header is None:
            return _response(_http.missing_key(self.documentation))
        key = _http.parse_key(header)
        if key is None:
            return _response(_http.malformed_key(self.documentation))
        return self._answer(request, account, key)

    def _answer(self, request: HttpRequest, account: str, key: str) -> HttpResponse:
        target = _http.target_of(request.path, request.META.get("QUERY_STRING", ""), is_quoted=False)
        request_hash = _http.fingerprint(request.method, target, request.body)
        claim = (key, account, None, request_hash, self.ttl, False)
        with transaction.atomic(using=self.using, durable=True):
            claimed = claim_of(self._row(CLAIM, *claim))
            if claimed.outcome != "claimed":
                return _response(_http.answer_for(claimed, self.documentation))
            response = self.get_response(request)
            answer = self._read(response) if self.keep(response.status_code) else None
            if answer is not None and not _http.is_refusal(answer.status):
                self._row(COMPLETE, key, claimed.owned_token, encode(answer.to_json()), account, None)
                return response
            transaction.set_rollback(True, using=self.using)
        if answer is None:
            return response

        # The rollback has undone the claim too.
        with transaction.atomic(using=self.using, durable=True):
            claimed = claim_of(self._row(CLAIM, *claim))
            if claimed.outcome != "claimed":
                return _response(_http.answer_for(claimed, self.documentation))
            self._row(FAIL, key, claimed.owned_token, encode(answer.to_json()), account, False)
        return response

    def _row(self, sql: str, *values: object) -> tuple[Any, ...]:
        with connections[self.using].cursor() as cursor:
            cursor.execute(sql, values)
            row: tuple[Any, ...] = cursor.fetchone()
            return row

    def _read(self, response: HttpResponse) -> _http.Answer:
        body = bytearray()
        for part in response.streaming_content if response.streaming else [response.content]:
            body += part
            if len(body) > self.max_answer:
                raise AnswerTooLarge(f"the answer has more than {self.max_answer} bytes, and is undone")
        if response.streaming:
            response.streaming_content = [bytes(body)]
        return _http.Answer(response.status_code, tuple(response.headers.items()), bytes(body))


def _response(answer: _http.Answer) -> HttpResponse:
    response = HttpResponse(answer.body, status=answer.status)
    del response["Content-Type"]
    for name, value in answer.headers:
        # Django has one value for a name; RFC 9110 joins several like that.
        response[name] = f"{response[name]}, {value}" if name in response else value
    return response
