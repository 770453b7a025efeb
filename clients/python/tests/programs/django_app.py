"""Django's own server, with the middleware. It prints its port.

A request has a key of the effect, and what to do, as in asgi_app.py.
"""

import json
import os
import sys
import time
from datetime import timedelta

import django
from django.conf import settings
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.core.wsgi import get_wsgi_application
from django.db import connection, connections, transaction
from django.http import Http404, HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import path

ATOMIC = "atomic" in sys.argv[1:]

settings.configure(
    SECRET_KEY="of a test",
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["127.0.0.1"],
    MIDDLEWARE=["django.middleware.common.CommonMiddleware", "__main__.ShopIdempotency"],
    LOGGING_CONFIG=None,
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": os.environ["PGDATABASE"],
            "HOST": os.environ["PGHOST"],
            "PORT": os.environ["PGPORT"],
            "USER": os.environ["PGUSER"],
            "ATOMIC_REQUESTS": ATOMIC,
        }
    },
)

from idempotency_pg.django import IdempotencyMiddleware  # noqa: E402


class ShopIdempotency(IdempotencyMiddleware):
    max_answer = 4000
    ttl = timedelta(days=2)
    documentation = "https://shop.example/keys"

    def account(self, request):
        return request.headers.get("X-Account")


def insert(effect):
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO effects VALUES (%s)", [effect])


def wait_for_gate(name):
    while True:
        with connections["default"].cursor() as cursor:
            cursor.execute("SELECT count(*) FROM gates WHERE name = %s", [name])
            if cursor.fetchone()[0]:
                return
        time.sleep(0.02)


def order(request):
    body = json.loads(request.body)
    do, effect = body["do"], body["effect"]
    with transaction.atomic():
        insert(effect)
    if do == "gate":
        wait_for_gate(effect)
    elif do == "redirect":
        response = HttpResponse(status=303)
        response["Location"] = "/orders/17"
        return response
    elif do == "raise":
        raise RuntimeError("of the view")
    elif do == "forbid":
        raise Http404("not yours")
    elif do == "unavailable":
        return JsonResponse({"do": do}, status=503)
    elif do == "conflict":
        return JsonResponse({"do": do}, status=409)
    elif do == "large":
        return HttpResponse(b"x" * 5000)
    elif do == "large stream":
        return StreamingHttpResponse(b"y" * 100 for _ in range(50))
    elif do == "stream":
        return StreamingHttpResponse(b"y" * 100 for _ in range(20))
    elif do == "binary":
        return HttpResponse(bytes(range(256)), content_type="application/octet-stream")
    elif do == "links":
        response = HttpResponse(b"linked", status=201)
        response["Link"] = "</1>; rel=next, </2>; rel=last"
        return response
    elif do == "hidden":
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1 / 0")
        except Exception:
            pass
    response = JsonResponse({"effect": effect}, status=201)
    response["X-Order"] = "17"
    response["Location"] = "/orders/17"
    response.set_cookie("a", "1", path="/orders", max_age=60)
    response.set_cookie("b", "2")
    return response


def plain(request):
    return JsonResponse({"body": request.body.decode()})


urlpatterns = [path("orders/new", order), path("orders/plain", plain)]

if __name__ == "__main__":
    django.setup()
    server = ThreadedWSGIServer(("127.0.0.1", 0), WSGIRequestHandler)
    server.set_app(get_wsgi_application())
    print("listening", server.server_address[1])
    server.serve_forever()
