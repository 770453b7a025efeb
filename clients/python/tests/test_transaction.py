"""transaction and consume: one effect and one answer, whatever happens in
between. If this fails, work is done twice, or not at all."""

import asyncio
from datetime import timedelta

import pytest

import idempotency_pg
from conftest import effects, sql
from idempotency_pg import Failed, Result, is_worth_repeating


def inserting(db, key, answer=None):
    async def work(conn):
        await db.execute(conn, f"INSERT INTO effects VALUES ('{key}')")
        return answer

    return work


async def test_replay(db, key):
    work = inserting(db, key, {"order": 1, 2: (3, 4)})
    answer = {"order": 1, "2": [3, 4]}
    first = await db.transaction(key, work, scope="shop", request="one", ttl=timedelta(days=2))
    assert first == Result("completed", answer, False, 1)
    assert await db.transaction(key, work, scope="shop", request="one") == Result("completed", answer, True, 1)
    assert (await db.transaction(key, work, scope="shop", request="two")).outcome == "mismatch"
    assert effects(key) == 1
    assert sql("SELECT expires_at > now() + interval '1 day' FROM idem_keys WHERE key = %s", key) == [(True,)]


async def test_error(db, key):
    async def work(conn):
        await inserting(db, key)(conn)
        raise KeyError("of the work")

    with pytest.raises(KeyError):
        await db.transaction(key, work)
    assert effects(key) == 0
    assert (await db.transaction(key, inserting(db, key))).replayed is False
    assert effects(key) == 1


async def test_hidden_error(db, key):
    """COMMIT would be a rollback, without an error."""

    async def work(conn):
        await inserting(db, key)(conn)
        try:
            await db.execute(conn, "SELECT 1 / 0")
        except db.errors:
            pass

    with pytest.raises(db.errors) as error:
        await db.transaction(key, work)
    assert idempotency_pg.sqlstate(error.value) == "25P02"
    assert effects(key) == 0
    assert (await db.transaction(key, inserting(db, key))).replayed is False


async def test_answer_that_cannot_be_saved(db, key):
    """jsonb has no character 0."""
    with pytest.raises(db.errors) as error:
        await db.transaction(key, inserting(db, key, {"note": "a\0b"}))
    assert idempotency_pg.sqlstate(error.value) == "22P05"
    with pytest.raises(TypeError):
        await db.transaction(key, inserting(db, key, {1, 2}))
    assert effects(key) == 0
    assert (await db.transaction(key, inserting(db, key))).replayed is False


async def test_final_failure(db, key):
    async def work(conn):
        await inserting(db, key)(conn)
        raise Failed({"reason": "no such item"})

    assert await db.transaction(key, work) == Result("failed", {"reason": "no such item"}, False, 1)
    assert effects(key) == 0
    assert await db.transaction(key, work) == Result("failed", {"reason": "no such item"}, True, 1)


async def test_duplicates_at_once(db, key):
    work = inserting(db, key, {"answer": 42})
    results = await asyncio.gather(*(db.transaction(key, work) for _ in range(20)))
    assert [result.response for result in results] == [{"answer": 42}] * 20
    assert sorted(result.replayed for result in results) == [False] + [True] * 19
    assert effects(key) == 1


async def test_without_wait(db, key):
    conn = await db.connect()
    await db.execute(conn, "BEGIN")
    await db.on(conn, "claim", key)
    result = await db.transaction(key, inserting(db, key), wait=False)
    assert result == Result("in_progress", None, False, None, None)
    await db.execute(conn, "ROLLBACK")
    await db.close(conn)
    assert (await db.transaction(key, inserting(db, key), wait=False)).replayed is False


async def test_leased_by_another(db, key):
    await db.call("claim", key, lease=timedelta(minutes=5))
    result = await db.transaction(key, inserting(db, key))
    assert (result.outcome, result.replayed) == ("in_progress", False)
    assert timedelta(minutes=4) < result.retry_after <= timedelta(minutes=5)
    assert effects(key) == 0


async def test_connection(db, key):
    """A connection will do, unless it is in a transaction, whose COMMIT would
    come later or never."""
    conn = await db.connect()
    assert (await db.transaction(key, inserting(db, key), source=conn)).replayed is False
    await db.execute(conn, "BEGIN")
    with pytest.raises(RuntimeError, match="in a transaction"):
        await db.transaction(key, inserting(db, key), source=conn)
    await db.close(conn)
    assert effects(key) == 1


async def test_commit_without_answer(db, key, proxied):
    """The outcome of COMMIT is unknown; the next try tells it."""
    through, proxy = proxied
    async with through:
        for number, cut in enumerate(("after", "before")):
            each = f"{key} {cut}"

            async def work(conn):
                await inserting(db, each, {"cut": cut})(conn)
                if proxy.cuts == number:
                    proxy.cut = cut

            result = await through.transaction(each, work, tries=3)
            assert proxy.cuts == number + 1
            assert (result.outcome, result.replayed) == ("completed", cut == "after")
            assert effects(each) == 1


async def test_commit_without_answer_and_tries(db, key, proxied):
    through, proxy = proxied

    async def work(conn):
        await inserting(db, key)(conn)
        proxy.cut = "after"

    async with through:
        with pytest.raises(Exception) as error:
            await through.transaction(key, work)
        assert is_worth_repeating(error.value)
        assert (await through.transaction(key, work)).replayed is True
    assert effects(key) == 1


async def test_passing_errors(db, key):
    """Such as that of a replica, and of a server that stops; not those of the
    program, nor one of its data."""
    states = iter(["25006", "57P01", "40001", None])

    async def work(conn):
        await inserting(db, key)(conn)
        state = next(states)
        if state:
            await db.execute(conn, f"DO $$BEGIN RAISE EXCEPTION 'passing' USING ERRCODE = '{state}'; END$$")

    with pytest.raises(db.errors):
        await db.transaction(key, work, tries=2)
    assert effects(key) == 0
    assert (await db.transaction(key, work, tries=2)).replayed is False
    assert effects(key) == 1

    tries = []

    async def failing(conn):
        tries.append(1)
        await db.execute(conn, "SELECT 1 / 0")

    with pytest.raises(db.errors):
        await db.transaction(key + " final", failing, tries=5)
    assert len(tries) == 1


@pytest.mark.parametrize("error", [FileNotFoundError, TimeoutError])
async def test_errors_of_work_outside_the_database(db, key, error):
    tries = []

    async def failing(conn):
        tries.append(1)
        raise error("of the work")

    with pytest.raises(error):
        await db.transaction(key, failing, tries=3)
    assert len(tries) == 1


async def test_statement_timeout_is_not_repeated(db, key):
    tries = []

    async def slow(conn):
        tries.append(1)
        await db.execute(conn, "SET LOCAL statement_timeout = '10 ms'")
        await db.execute(conn, "SELECT pg_sleep(60)")

    with pytest.raises(db.errors):
        await db.transaction(key, slow, tries=3)
    assert len(tries) == 1


async def test_consume(db, key):
    work = inserting(db, key)
    assert (await db.consume("queue", key, work, request="body")).replayed is False
    assert (await db.consume("queue", key, work, request="body")).replayed is True
    assert (await db.consume("queue", key, work, request="other")).outcome == "mismatch"
    assert (await db.consume("other queue", key, work)).replayed is False
    assert effects(key) == 2
    rest = "SELECT min(expires_at - now()), max(expires_at - now()) FROM idem_keys WHERE key = %s AND scope = %s"
    assert sql("SHOW idempotency.ttl") == [("1d",)]
    assert sql(rest, key, "queue")[0][1] <= timedelta(days=1)
    await db.consume("long queue", key, work, ttl=timedelta(days=9))
    assert timedelta(days=8) < sql(rest, key, "long queue")[0][0] <= timedelta(days=9)


async def test_consume_failed(db, key):
    async def work(conn):
        raise Failed({"error": "no such account"}) from ValueError("bad")

    assert (await db.consume("queue", key, work)).outcome == "failed"
    assert sql("SELECT outcome::text, response FROM idem_claim(%s, 'queue')", key) == [
        ("failed", {"error": "no such account"})
    ]


# ---------------------------------------------------------------------------
# The schema of the extension
# ---------------------------------------------------------------------------


@pytest.fixture
def elsewhere(monkeypatch):
    """A database with the extension in the schema tools."""
    sql("DROP DATABASE IF EXISTS elsewhere WITH (FORCE)")
    sql("CREATE DATABASE elsewhere")
    sql("CREATE SCHEMA tools", dbname="elsewhere")
    sql("CREATE EXTENSION idempotency SCHEMA tools", dbname="elsewhere")
    sql("SELECT tools.idempotency_grant('shop')", dbname="elsewhere")
    monkeypatch.setenv("PGDATABASE", "elsewhere")
    yield
    sql("DROP DATABASE elsewhere WITH (FORCE)")


async def nothing(conn):
    return {"answer": 1}


async def test_extension_in_another_schema(elsewhere, db, key):
    sql("ALTER ROLE shop IN DATABASE elsewhere SET search_path = public, tools")
    there = type(db)()
    async with there:
        assert (await there.transaction(key, nothing)).replayed is False
        assert (await there.transaction(key, nothing)).replayed is True

        async def body(held):
            [(start,)] = sql(lease_until, key + " lease", dbname="elsewhere")
            await there.until(lambda: sql(lease_until, key + " lease", dbname="elsewhere")[0][0] > start)
            await held.commit(nothing)

        lease_until = "SELECT lease_until FROM tools.idem_keys WHERE key = %s"
        await there.lease(key + " lease", body, lease=timedelta(seconds=6))


async def test_extension_outside_of_the_search_path(elsewhere, db, key):
    there = type(db)()
    async with there:
        with pytest.raises(db.errors) as error:
            await there.transaction(key, nothing)
    assert idempotency_pg.sqlstate(error.value) == "42883"
    assert "search_path" in error.value.__notes__[0]
