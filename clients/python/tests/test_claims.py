"""claim, complete, fail and renew: the columns, parameters and errors of the
functions of SQL, with each driver. If this fails, nothing else is right."""

from datetime import datetime, timedelta, timezone

import psycopg
import pytest

import idempotency_pg
from conftest import sql
from idempotency_pg import Claim, KeyNotFound, KeyNotInProgress, LeaseLost, ScopeMoved

LEASE = timedelta(seconds=40)
ANSWER = {"order": 17, "lines": [1, 2.5, None, True], "note": 'Grüße, 漢字 "%s" $1'}


async def test_outcomes(db, key):
    first = await db.call("claim", key, scope="thin", request="one", lease=LEASE)
    assert first == Claim("claimed", first.token, 1, None, None)
    assert first.owned_token > 0

    busy = await db.call("claim", key, scope="thin", request="one", lease=LEASE)
    assert (busy.outcome, busy.token, busy.attempt) == ("in_progress", None, 1)
    assert timedelta(0) < busy.retry_after <= LEASE
    assert (await db.call("claim", key, scope="thin", request="other")).outcome == "mismatch"
    assert (await db.call("claim", key, scope="other")).outcome == "claimed"

    await db.call("complete", key, first.token, ANSWER, scope="thin")
    assert await db.call("claim", key, scope="thin") == Claim("completed", None, 1, ANSWER, None)


async def test_fail(db, key):
    first = await db.call("claim", key, lease=LEASE)
    await db.call("fail", key, first.token)
    again = await db.call("claim", key, lease=LEASE)
    assert (again.outcome, again.attempt) == ("claimed", 2)
    await db.call("fail", key, again.token, ANSWER, retry=False)
    assert await db.call("claim", key) == Claim("failed", None, 2, ANSWER, None)


async def test_renew(db, key):
    first = await db.call("claim", key, lease=timedelta(seconds=5))
    end = await db.call("renew", key, first.token, timedelta(minutes=5))
    assert timedelta(minutes=4) < end - datetime.now(timezone.utc) <= timedelta(minutes=5)
    await db.call("renew", key, first.token)  # with the setting


async def test_ttl(db, key):
    await db.call("claim", key, ttl=timedelta(days=40))
    rest = "SELECT expires_at - now() FROM idem_keys WHERE key = %s"
    assert timedelta(days=39) < sql(rest, key)[0][0] <= timedelta(days=40)
    other = key + " completed"
    claim = await db.call("claim", other, lease=LEASE)
    await db.call("complete", other, claim.token, ttl=timedelta(days=2))
    assert timedelta(days=1) < sql(rest, other)[0][0] <= timedelta(days=2)


async def test_errors(db, key):
    first = await db.call("claim", key, lease=timedelta(milliseconds=1))
    await db.until(lambda: sql("SELECT lease_until < clock_timestamp() FROM idem_keys WHERE key = %s", key)[0][0])
    second = await db.call("claim", key, lease=LEASE)
    assert second.attempt == 2

    with pytest.raises(LeaseLost) as lost:
        await db.call("complete", key, first.token, ANSWER)
    assert lost.value.sqlstate == "ID001"
    assert isinstance(lost.value.__cause__, db.errors)
    with pytest.raises(KeyNotFound):
        await db.call("fail", key + " unknown", second.token)
    await db.call("complete", key, second.token)
    with pytest.raises(KeyNotInProgress):
        await db.call("renew", key, second.token)

    sql("SELECT idem_fence(%s)", "moved " + key)
    with pytest.raises(ScopeMoved):
        await db.call("claim", key, scope="moved " + key)


async def test_errors_of_the_server_pass(db, key):
    with pytest.raises(db.errors) as error:
        await db.call("claim", "")
    assert idempotency_pg.sqlstate(error.value) == "22023"
    with pytest.raises(ValueError):
        await db.call("complete", key, 1, float("nan"))


async def test_wait(db, key):
    conn = await db.connect()
    await db.execute(conn, "BEGIN")
    await db.on(conn, "claim", key)
    assert await db.call("claim", key, wait=False) == Claim("in_progress", None, None, None, None)
    await db.execute(conn, "COMMIT")
    await db.close(conn)
    assert (await db.call("claim", key, wait=False)).outcome == "completed"


def test_row_factory_of_the_user(key):
    with psycopg.connect(autocommit=True, row_factory=psycopg.rows.dict_row) as conn:
        claim = idempotency_pg.claim(conn, key, lease=LEASE)
        idempotency_pg.complete(conn, key, claim.owned_token, ANSWER)
        assert idempotency_pg.claim(conn, key).response == ANSWER
