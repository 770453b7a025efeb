"""The middleware for Django answers as the IETF draft of Idempotency-Key requires,
in Django's own server and transaction. If this fails, a request that is sent again
takes effect again, or gets a wrong answer."""

import pytest

from conftest import effects, sql, wait_until
from http_client import Later, check_header, is_problem, open_gate, send, send_header

PATH = "/orders/new"


@pytest.fixture(params=["plain", "atomic"], scope="module")
def port(request, start_server):
    return start_server("django_app.py", request.param).port()


def do(key, what="work"):
    return {"effect": key, "do": what}


def test_header(port):
    check_header(port, PATH)
    assert send_header(port, "/orders/plain", r' "say \"bye\" \\ " ').status == 200
    assert sql(r"""SELECT count(*) FROM idem_keys WHERE key = 'say "bye" \ '""")[0][0] == 1
    assert send(port, PATH, body={}).body["type"] == "https://shop.example/keys"


def test_requests_without_claim(port, key):
    assert send(port, "/orders/plain", key, b"no account", account=None).body == {"body": "no account"}
    assert send(port, "/orders/plain", key, b"", method="GET").status == 200
    assert sql("SELECT count(*) FROM idem_keys WHERE key = %s", key) == [(0,)]


def test_replay(port, key):
    first = send(port, PATH, key, do(key))
    assert (first.status, first.replayed, first.headers["x-order"]) == (201, False, "17")
    again = send(port, PATH, key, do(key))
    assert again.replayed
    assert again.replayable == first.replayable
    assert len(first.headers.get_all("set-cookie")) == 2
    assert again.headers.get_all("set-cookie") is None
    assert effects(key) == 1
    assert sql("SELECT expires_at > now() + interval '1 day' FROM idem_keys WHERE key = %s", key) == [(True,)]

    other = send(port, PATH, key, do(key), account="bob")
    assert (other.status, other.replayed) == (201, False)
    assert effects(key) == 2


def test_other_request(port, key):
    send(port, PATH, key, do(key))
    title = "Idempotency-Key is already used"
    is_problem(send(port, PATH, key, do(key, "other")), 422, title)
    is_problem(send(port, PATH + "?x=1", key, do(key)), 422, title)
    is_problem(send(port, "/orders/plain", key, do(key)), 422, title)
    is_problem(send(port, PATH, key, do(key), method="PATCH"), 422, title)
    assert effects(key) == 1


def test_outstanding(port, key):
    slow = Later(port, PATH, key, do(key, "gate"))
    query = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT count(*) FROM gates%%' AND query ~ %s"
    wait_until(lambda: sql(query, key)[0][0])
    busy = send(port, PATH, key, do(key, "gate"))
    is_problem(busy, 409, "A request is outstanding for this Idempotency-Key")
    assert busy.headers["retry-after"] == "1"
    open_gate(key)
    assert slow.answer().status == 201
    assert send(port, PATH, key, do(key, "gate")).replayed
    assert effects(key) == 1


@pytest.mark.parametrize("what, status", [("raise", 500), ("unavailable", 503), ("hidden", 500)])
def test_errors_free_the_key(port, key, what, status):
    assert send(port, PATH, key, do(key, what)).status == status
    assert effects(key) == 0
    again = send(port, PATH, key, do(key))
    assert (again.status, again.replayed) == (201, False)
    assert effects(key) == 1


@pytest.mark.parametrize("what, status", [("forbid", 404), ("conflict", 409)])
def test_refusals_are_kept(port, key, what, status):
    assert send(port, PATH, key, do(key, what)).status == status
    assert effects(key) == 0
    again = send(port, PATH, key, do(key, what))
    assert (again.status, again.replayed) == (status, True)
    assert effects(key) == 0
    assert sql("SELECT state FROM idem_keys WHERE key = %s", key) == [("failed",)]


def test_redirection_is_committed(port, key):
    assert send(port, PATH, key, do(key, "redirect")).status == 303
    again = send(port, PATH, key, do(key, "redirect"))
    assert (again.status, again.replayed) == (303, True)
    assert effects(key) == 1


@pytest.mark.parametrize("what", ["binary", "stream"])
def test_other_answers(port, key, what):
    content = {"binary": bytes(range(256)), "stream": b"y" * 2000}[what]
    first = send(port, PATH, key, do(key, what))
    again = send(port, PATH, key, do(key, what))
    assert first.content == again.content == content
    assert again.replayed


@pytest.mark.parametrize("what", ["large", "large stream"])
def test_large_answer(port, key, what):
    assert send(port, PATH, key, do(key, what)).status == 500
    assert effects(key) == 0
    assert send(port, PATH, key, do(key)).status == 201


def test_duplicates_at_once(port, key):
    requests = [Later(port, PATH, key, do(key)) for _ in range(20)]
    statuses = sorted(request.answer().status for request in requests)
    assert set(statuses) <= {201, 409} and 201 in statuses
    assert send(port, PATH, key, do(key)).body == {"effect": key}
    assert effects(key) == 1


def test_killed_program(start, key):
    """Before its commit: nothing has happened."""
    program = start("django_app.py")
    lost = Later(program.port(), PATH, key, do(key, "gate"))
    query = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT count(*) FROM gates%%' AND query ~ %s"
    wait_until(lambda: sql(query, key)[0][0])
    program.kill()
    assert lost.answer() is None
    open_gate(key)
    port = start("django_app.py").port()
    wait_until(lambda: send(port, PATH, key, do(key, "gate")).status == 201)
    assert effects(key) == 1
