"""webhook_receiver: signatures of Standard Webhooks, and one effect of each event,
which the real relay delivers twice. If this fails, an event takes effect twice, or
anybody can send one."""

import asyncio
import json
import threading
import time
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from conftest import sql, wait_until
from idempotency_pg import InvalidSignature, verify_webhook

# The example of the specification.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
AT = "1614265330"
BODY = b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="

RECEIVER = "receiver"


@pytest.fixture(scope="module", autouse=True)
def receiver_database():
    """The receiver has a database of its own."""
    sql("DROP DATABASE IF EXISTS receiver WITH (FORCE)")
    sql("CREATE DATABASE receiver")
    sql("CREATE EXTENSION idempotency", dbname=RECEIVER)
    sql("SELECT idempotency_grant('shop')", dbname=RECEIVER)
    sql("CREATE TABLE parcels (item text NOT NULL); GRANT ALL ON parcels TO PUBLIC", dbname=RECEIVER)


@pytest.fixture(autouse=True)
def in_receiver_database(monkeypatch):
    monkeypatch.setenv("PGDATABASE", RECEIVER)


def parcels(item):
    return sql("SELECT count(*) FROM parcels WHERE item = %s", item, dbname=RECEIVER)[0][0]


def shipping(db):
    async def ship(conn, event):
        item = event["data"]["item"]
        await db.execute(conn, f"INSERT INTO parcels VALUES ('{item}')")
        if item.endswith("broken"):
            raise KeyError(item)

    return ship


def signed(secret, id, body, at=None):
    at = int(time.time()) if at is None else at
    [(signature,)] = sql("SELECT outbox_signature(%s, %s, %s, %s)", secret, id, at, body.decode())
    return {"Webhook-Id": id, "Webhook-Timestamp": str(at), "Webhook-Signature": signature}


def test_example_of_the_specification():
    headers = {"webhook-id": ID, "webhook-timestamp": AT, "webhook-signature": SIGNATURE}
    age = timedelta(days=36500)
    assert verify_webhook(SECRET, headers, BODY, tolerance=age) == ID
    several = {**headers, "webhook-signature": f"v1a,abcd v1,b3RoZXI= {SIGNATURE}"}
    assert verify_webhook(["whsec_b3RoZXI=", SECRET], several, BODY, tolerance=age) == ID

    for wrong in (
        {**headers, "webhook-signature": "v1,b3RoZXI="},
        {**headers, "webhook-signature": SIGNATURE.replace("v1,", "v2,")},
        {**headers, "webhook-signature": "ä"},
        {**headers, "webhook-signature": ""},
        {**headers, "webhook-id": ID + "x"},
        {**headers, "webhook-timestamp": AT + "0"},
        {**headers, "webhook-timestamp": "today"},
        {**headers, "webhook-timestamp": "-1"},
        {"webhook-id": ID, "webhook-timestamp": AT},
        {},
    ):
        with pytest.raises(InvalidSignature):
            verify_webhook(SECRET, wrong, BODY, tolerance=age)
    with pytest.raises(InvalidSignature):
        verify_webhook(SECRET, headers, BODY)
    with pytest.raises(InvalidSignature):
        verify_webhook(SECRET, headers, BODY + b" ", tolerance=age)
    with pytest.raises(ValueError, match="not base64"):
        verify_webhook("whsec_!", headers, BODY, tolerance=age)


async def test_statuses(db, key):
    [(secret,), (other,)] = sql("SELECT outbox_secret_generate() FROM generate_series(1, 2)")
    receive = db.webhook_receiver(secret, shipping(db), scope="shop")
    body = json.dumps({"data": {"item": key}}).encode()

    assert await receive({}, body) == 401
    assert await receive(signed(other, key, body), body) == 401
    for seconds in (-310, 310):
        assert await receive(signed(secret, key, body, int(time.time()) + seconds), body) == 401
    assert await receive(signed(secret, key, body), body + b" ") == 401
    assert parcels(key) == 0

    assert await receive(signed(secret, key, body, int(time.time()) - 270), body) == 204
    assert await receive(signed(secret, key, body), body) == 204
    [(rest,)] = sql("SELECT expires_at - now() FROM idem_keys WHERE key = %s", key, dbname=RECEIVER)
    assert timedelta(days=39) < rest <= timedelta(days=40)
    changed = body + b" "
    assert await receive(signed(secret, key, changed), changed) == 422
    assert parcels(key) == 1

    broken = json.dumps({"data": {"item": key + " broken"}}).encode()
    with pytest.raises(KeyError):
        await receive(signed(secret, key + " broken", broken), broken)
    assert parcels(key + " broken") == 0


class Endpoint:
    """An HTTP server around a receiver; its first answer gets lost."""

    def __init__(self, receive):
        loop = asyncio.get_running_loop()
        self.statuses = statuses = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                status = asyncio.run_coroutine_threadsafe(receive(dict(self.headers), body), loop).result()
                statuses.append((self.headers["webhook-id"], status))
                if len(statuses) == 1:
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_address[1]}/"

    def close(self):
        self.server.shutdown()
        self.server.server_close()


async def test_relay(db, key):
    [(secret,)] = sql("SELECT outbox_secret_generate()")
    endpoint = Endpoint(db.webhook_receiver(secret, shipping(db), scope="shop"))
    subscribe = "SELECT outbox_subscribe(%s, %s, topics => ARRAY[%s], secret => %s, retry_schedule => %s::interval[])"
    sql(subscribe, key, endpoint.url, f"order.{key}", secret, ["0 s"] + ["100 ms"] * 29)
    [(position,)] = sql("SELECT outbox_enqueue(%s, %s::jsonb)", f"order.{key}", json.dumps({"item": key}))
    [(id,)] = sql("SELECT outbox_event_id(%s)", position)
    # The receiver needs the event loop meanwhile.
    await asyncio.to_thread(wait_until, lambda: len(endpoint.statuses) >= 2)
    state = "SELECT waiting = 0 AND position >= %s FROM outbox_subscriptions WHERE name = %s"
    await asyncio.to_thread(wait_until, lambda: sql(state, position, key)[0][0])
    sql("SELECT outbox_unsubscribe(%s)", key)
    endpoint.close()
    assert endpoint.statuses == [(id, 204), (id, 204)]
    assert parcels(key) == 1
