"""The Python of README.md runs as it is there, also in Starlette and Django. If this
fails, the first program that a user copies does not work."""

import asyncio
import json
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.conf import settings
from django.http import HttpResponse
from django.test import RequestFactory
from starlette.applications import Starlette
from starlette.routing import Mount

from conftest import sql
from idempotency_pg._http import Answer

README = Path(__file__).parent.parent / "README.md"


@pytest.fixture(scope="module")
def names():
    """What the blocks define, run one after the other."""
    sql("CREATE TABLE orders (item text); CREATE TABLE payments (receipt text)")
    sql("GRANT ALL ON orders, payments TO PUBLIC")
    names = {}
    printed = StringIO()
    text = README.read_text()
    for block in re.finditer(r"^```python\n(.*?)^```$", text, re.M | re.S):
        lines_before = text.count("\n", 0, block.start(1))
        with redirect_stdout(printed):
            exec(compile("\n" * lines_before + block[1], "README.md", "exec"), names)
    names["printed"] = printed.getvalue()
    yield names
    names["pool"].close()


def test_blocks(names):
    assert sql("SELECT item FROM orders WHERE item IN ('hat', 'scarf', 'glove') ORDER BY item") == [
        ("glove",),
        ("glove",),
        ("hat",),
        ("scarf",),
    ]
    assert sql("SELECT receipt FROM payments") == [("ch_1",)]
    assert names["printed"] == "completed {'item': 'hat'} True\ncompleted\n"
    assert names["status"] == 401


def test_all_code_is_python():
    """So that all of it is run here; but for the first block, which is pip, and the
    last one, which is an answer as it is saved."""
    text = README.read_text()
    first, *others, last = re.findall(r"^```(\w*)\n", text, re.M)[::2]
    assert (first, last) == ("", "json") and others and set(others) == {"python"}
    saved = json.loads(re.search(r"^```json\n(.*?)^```$", text, re.M | re.S)[1])
    assert Answer.from_json(saved).to_json() == saved


def test_app_in_starlette(names):
    sent = []

    async def request(account):
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/",
            "query_string": b"",
            "headers": [(b"idempotency-key", b'"request-4714"')],
            "user": SimpleNamespace(is_authenticated=True, username=account),
        }

        async def receive():
            return {"type": "http.request", "body": b"{}", "more_body": False}

        async def send(message):
            sent.append(message)

        await Starlette(routes=[Mount("/", app=names["app"])])(scope, receive, send)

    async def requests():
        async with names["async_pool"]:
            for account in ("ann", "ann", "bob"):
                await request(account)

    asyncio.run(requests())
    assert [message["status"] for message in sent if "status" in message] == [201] * 3
    assert [message["body"] for message in sent if "body" in message] == [b"ordered"] * 3
    assert sql("SELECT count(*) FROM orders WHERE item = 'coat'") == [(2,)]


def test_django(names):
    if not settings.configured:
        settings.configure(
            DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "shop"}}
        )
    from django.db import connection

    calls = []

    def view(request):
        calls.append(request)
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO orders (item) VALUES ('shoe')")
        return HttpResponse("ordered", status=201)

    middleware = names["ShopIdempotency"](view)
    for replayed in (None, "true"):
        request = RequestFactory().post("/", b"{}", "application/json", HTTP_IDEMPOTENCY_KEY='"request-4715"')
        request.user = SimpleNamespace(is_authenticated=True, pk=17)
        answer = middleware(request)
        assert (answer.status_code, answer.content) == (201, b"ordered")
        assert answer.headers.get("Idempotent-Replayed") == replayed
    connection.close()
    assert len(calls) == 1
    assert sql("SELECT count(*) FROM orders WHERE item = 'shoe'") == [(1,)]
