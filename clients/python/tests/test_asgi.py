"""The ASGI middleware answers as the IETF draft of Idempotency-Key requires, behind
uvicorn, with both drivers, in a transaction and with a lease. If this fails, a
request that is sent again takes effect again, or gets a wrong answer."""

import json
import time
from datetime import timedelta

import pytest

from conftest import effects, sql, wait_until
from http_client import Later, check_header, is_problem, open_gate, send, send_and_go, send_header
from idempotency_pg._http import Answer
from idempotency_pg.asgi import IdempotencyMiddleware, _target


@pytest.fixture(params=["psycopg", "asyncpg"], scope="module")
def port(request, start_server):
    return start_server("asgi_app.py", request.param, "300").port()


@pytest.fixture(params=["/orders/new", "/payments/new"], ids=["transaction", "lease"])
def path(request):
    return request.param


def do(key, what="work"):
    return {"effect": key, "do": what}


def test_header(port):
    check_header(port, "/orders/new")
    assert send_header(port, "/orders/plain", r' "say \"hi\" \\ " ').status == 200
    assert sql(r"""SELECT count(*) FROM idem_keys WHERE key = 'say "hi" \ '""") == [(1,)]
    for header in ('"with parameters"; p=1;q="x, y";r;s=?0', '"with parameters"'):
        assert send_header(port, "/orders/plain?", header).status == 200
    assert sql("SELECT count(*) FROM idem_keys WHERE key ~ '^with parameters'") == [(1,)]
    assert send(port, "/orders/new", body={}).body["type"] == "https://shop.example/keys"


def test_requests_without_claim(port, key):
    assert send(port, "/payments/plain", body=b"no key").body == {"body": "no key"}
    assert send(port, "/orders/plain", key, b"no account", account=None).body == {"body": "no account"}
    assert send(port, "/orders/plain", key, b"", method="GET").status == 200
    assert sql("SELECT count(*) FROM idem_keys WHERE key = %s", key) == [(0,)]


def test_replay(port, path, key):
    first = send(port, path, key, do(key))
    assert (first.status, first.replayed, first.headers["x-order"]) == (201, False, "17")
    again = send(port, path, key, do(key))
    assert again.replayed
    assert again.replayable == first.replayable
    assert first.headers.get_all("set-cookie") == ["a=1; Path=/orders; SameSite=lax", "b=2; Path=/; SameSite=lax"]
    assert again.headers.get_all("set-cookie") is None
    assert effects(key) == 1

    other = send(port, path, key, do(key), account="bob")
    assert (other.status, other.replayed) == (201, False)
    assert effects(key) == 2


def test_other_request(port, path, key):
    send(port, path, key, do(key))
    title = "Idempotency-Key is already used"
    is_problem(send(port, path, key, do(key, "other")), 422, title)
    is_problem(send(port, path + "?x=1", key, do(key)), 422, title)
    is_problem(send(port, path.replace("new", "plain"), key, do(key)), 422, title)
    if path == "/orders/new":
        is_problem(send(port, path, key, do(key), method="PATCH"), 422, title)
    assert effects(key) == 1


def test_outstanding(port, path, key):
    slow = Later(port, path, key, do(key, "gate"))
    query = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT count(*) FROM gates%%' AND query ~ %s"
    wait_until(lambda: sql(query, key)[0][0])
    busy = send(port, path, key, do(key, "gate"))
    is_problem(busy, 409, "A request is outstanding for this Idempotency-Key")
    retry_s = int(busy.headers["retry-after"])
    assert retry_s == 1 if path == "/orders/new" else 200 < retry_s <= 300
    open_gate(key)
    assert slow.answer().status == 201
    assert send(port, path, key, do(key, "gate")).replayed
    assert effects(key) == 1


@pytest.mark.parametrize("what, status", [("raise", 500), ("unavailable", 503), ("wrong header", 500)])
def test_errors_free_the_key(port, path, key, what, status):
    assert send(port, path, key, do(key, what)).status == status
    assert effects(key) == 0
    again = send(port, path, key, do(key))
    assert (again.status, again.replayed) == (201, False)
    assert effects(key) == 1


@pytest.mark.parametrize("what, status", [("forbid", 403), ("conflict", 409)])
def test_refusals_are_kept(port, path, key, what, status):
    assert send(port, path, key, do(key, what)).status == status
    assert effects(key) == 0
    again = send(port, path, key, do(key, what))
    assert (again.status, again.replayed) == (status, True)
    assert effects(key) == 0
    assert sql("SELECT state FROM idem_keys WHERE key = %s", key) == [("failed",)]


def test_redirection_is_committed(port, path, key):
    assert send(port, path, key, do(key, "redirect")).status == 303
    again = send(port, path, key, do(key, "redirect"))
    assert (again.status, again.replayed) == (303, True)
    assert effects(key) == 1


def test_large_refusal(port, path, key):
    """Nothing has taken effect, with a lease too."""
    first = send(port, path, key, do(key, "large refusal"))
    again = send(port, path, key, do(key, "large refusal"))
    if path == "/orders/new":
        assert first.status == again.status == 500
    else:
        assert first.status == 400
        is_problem(again, 410, "The answer was too large to be kept")
        assert again.body["original_status"] == 400
        assert again.body["detail"].startswith("The request was refused")
    assert effects(key) == 0


@pytest.mark.parametrize("what", ["fail", "fail in work"])
def test_failed_frees_the_key(port, path, key, what):
    """It has no HTTP answer that could be sent again."""
    assert send(port, path, key, do(key, what)).status == 500
    assert effects(key) == 0
    again = send(port, path, key, do(key))
    assert (again.status, again.replayed) == (201, False)
    assert effects(key) == 1


def test_answer_of_another_function(port, key):
    [(token,)] = sql("SELECT token FROM idem_claim(%s, 'ann', lease => '1 h')", key)
    sql("SELECT idem_complete(%s, %s, '[1]', scope => 'ann')", key, token)
    is_problem(send(port, "/orders/new", key, do(key)), 422, "Idempotency-Key is already used")

    [(token,)] = sql("SELECT token FROM idem_claim(%s, 'bob', lease => '1 h')", key)
    sql("""SELECT idem_complete(%s, %s, '{"status": 200, "headers": []}', scope => 'bob')""", key, token)
    answer = send(port, "/orders/new", key, do(key), account="bob")
    is_problem(answer, 422, "Idempotency-Key is already used")


def test_binary_answer(port, path, key):
    first = send(port, path, key, do(key, "binary"))
    again = send(port, path, key, do(key, "binary"))
    assert first.content == again.content == bytes(range(256))
    assert again.replayed


@pytest.mark.parametrize("what", ["large", "large stream"])
def test_large_answer(port, path, key, what):
    first = send(port, path, key, do(key, what))
    again = send(port, path, key, do(key, what))
    if path == "/orders/new":
        # Work in the database is undone.
        assert first.status == again.status == 500
        assert effects(key) == 0
    else:
        # Other work cannot be.
        assert (first.status, len(first.content)) == (200, 5000)
        is_problem(again, 410, "The answer was too large to be kept")
        assert again.body["original_status"] == 200
        assert effects(key) == 1


def test_large_request(port, path, key):
    answer = send(port, path, key, b"x" * 10001)
    is_problem(answer, 413, "The body is too large")
    largest = json.dumps(do(key)).encode()
    assert send(port, path, key, largest + b" " * (10000 - len(largest))).status == 201


def test_background_task(port, path, key):
    """It runs after the answer and after the commit."""
    assert send(port, path, key, do(key, "background")).body == {"do": "background"}
    assert effects(key) == 1
    assert send(port, path, key, do(key, "background")).replayed
    open_gate(key)


def test_duplicates_at_once(port, path, key):
    requests = [Later(port, path, key, do(key)) for _ in range(20)]
    statuses = sorted(request.answer().status for request in requests)
    assert set(statuses) <= {201, 409} and 201 in statuses
    assert json.loads(send(port, path, key, do(key)).content) == {"effect": key}
    assert effects(key) == 1


def waits_at_gate(key):
    query = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT count(*) FROM gates%%' AND query ~ %s"
    return sql(query, key)[0][0]


def test_client_that_comes_back(port, path, key):
    """It gets the answer that the program has finished without it."""
    go = send_and_go(port, path, key, do(key, "gate"))
    wait_until(lambda: waits_at_gate(key))
    go()
    time.sleep(0.5)  # the server notices it
    open_gate(key)
    answers = []
    wait_until(lambda: answers.append(send(port, path, key, do(key, "gate"))) or answers[-1].status == 201)
    assert answers[-1].replayed
    assert effects(key) == 1


@pytest.mark.parametrize("what", ["gate", "gate, then raise", "gate, then answer"])
def test_client_that_does_not_wait(port, key, what):
    """The program is given up, whatever it makes of that, and its transaction ends."""
    go = send_and_go(port, "/impatient/new", key, do(key, what))
    wait_until(lambda: waits_at_gate(key))
    time.sleep(0.5)
    # Not that which waits at the gate.
    is_open = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND query ~ ('^INSERT.*' || %s)"
    assert sql(is_open, key)[0][0] == 1, "there is no limit while the client is there"
    go()
    free = "SELECT outcome = 'claimed' FROM idem_claim(%s, 'ann', wait => false, lease => '1 h')"
    wait_until(lambda: sql(free, key)[0][0])
    assert effects(key) == 0


def test_saved_json_that_is_no_answer():
    """Other functions save any JSON, and servers refuse some headers."""
    answer = {"status": 200, "headers": [["a", "\xe4\tb"]], "body": ""}
    assert Answer.from_json(answer)
    for change in (
        {"status": 100},
        {"status": True},
        {"headers": [["a", "b\r\nc: d"]]},
        {"headers": [["a b", "c"]]},
        {"headers": [["a"]]},
        {"headers": [["a", "\u6f22"]]},
    ):
        assert Answer.from_json({**answer, **change}) is None, change


@pytest.mark.parametrize("wrong", [60, timedelta(0)])
def test_close_timeout(wrong):
    """A number would be an error after the client has gone, which nobody sees."""
    with pytest.raises((TypeError, ValueError)):
        IdempotencyMiddleware(None, None, None, close_timeout=wrong)


def test_target():
    """That of the client, also if the server does not tell it, except that a question
    mark without a query is not seen."""
    for raw_path in (b"/a%3Fx%3D1/%C3%A4;b=c", None):
        scope = {"path": "/a?x=1/ä;b=c", "raw_path": raw_path}
        path = "/a%3Fx%3D1/%C3%A4;b=c" if raw_path else "/a%3Fx=1/%C3%A4;b=c"
        assert _target({**scope, "query_string": b"x=1&y=%20?"}) == f"{path}?x=1&y=%20?"
        assert _target({**scope, "query_string": b""}) == _target(scope) == path


def test_killed_program(start, key):
    """The key is free when the lease is over, and the work is done once."""
    program = start("asgi_app.py", "asyncpg", "2")
    port = program.port()
    lost = Later(port, "/payments/new", key, do(key, "gate"))
    wait_until(lambda: sql("SELECT count(*) FROM idem_keys WHERE key = %s", key)[0][0])
    program.kill()
    assert lost.answer() is None
    port = start("asgi_app.py", "asyncpg", "2").port()
    open_gate(key)
    wait_until(lambda: send(port, "/payments/new", key, do(key, "gate")).status == 201)
    assert effects(key) == 1


@pytest.mark.parametrize("what", ["gate", "gate, then raise"])
def test_lost_lease(start, key, what):
    """The request is cancelled, and nothing of it is committed. A program or driver
    that makes another error of the cancellation changes nothing of that."""
    port = start("asgi_app.py", "psycopg", "1").port()
    late = Later(port, "/payments/new", key, do(key, what))
    wait_until(lambda: sql("SELECT count(*) FROM idem_keys WHERE key = %s", key)[0][0])
    sql("SELECT idem_forget(%s, 'ann')", key)
    sql("SELECT idem_claim(%s, 'ann', lease => '1 h')", key)
    is_problem(late.answer(), 409, "A request is outstanding for this Idempotency-Key")
    assert effects(key) == 0
