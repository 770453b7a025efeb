"""Programs that die: the work is done once, and its answer is not lost. If this
fails, a crash repeats or loses work."""

import signal

from conftest import effects, sql


def driver_of(db):
    return {"Sync": "sync", "AsyncPsycopg": "async psycopg", "Asyncpg": "asyncpg"}[type(db).__name__]


def inserting(db, key):
    async def work(conn):
        await db.execute(conn, f"INSERT INTO effects VALUES ('{key}')")
        return {"answer": 43}

    return work


async def test_killed_before_commit(db, key, start):
    program = start("worker.py", driver_of(db), "before COMMIT", key)
    assert program.line() == "before COMMIT"
    program.kill()
    # Waits until the server notices.
    result = await db.transaction(key, inserting(db, key))
    assert (result.response, result.replayed) == ({"answer": 43}, False)
    assert effects(key) == 1


async def test_killed_after_commit(db, key, start):
    program = start("worker.py", driver_of(db), "after COMMIT", key)
    assert program.line() == "after COMMIT"
    program.kill()
    result = await db.transaction(key, inserting(db, key))
    assert (result.response, result.replayed) == ({"answer": 42}, True)
    assert effects(key) == 1


async def test_killed_with_lease(db, key, start):
    """Its key is free when the lease is over, not before."""
    program = start("worker.py", driver_of(db), "lease", key)
    assert program.line() == "claimed"
    program.kill()
    assert (await db.transaction(key, inserting(db, key))).outcome == "in_progress"
    results = []

    async def taken_over():
        results.append(await db.transaction(key, inserting(db, key)))
        return results[-1].outcome == "completed"

    while not await taken_over():
        pass
    assert (results[-1].replayed, results[-1].attempt) == (False, 2)
    assert effects(key) == 1


async def test_late_owner(db, key, start):
    """A process that was stopped for longer than its lease."""
    program = start("worker.py", driver_of(db), "lease", key)
    assert program.line() == "claimed"
    program.signal(signal.SIGSTOP)
    await db.until(lambda: sql("SELECT outcome::text FROM idem_claim(%s, lease => '1 h')", key) == [("claimed",)])
    program.say("go on")
    program.signal(signal.SIGCONT)
    assert program.line() == "LeaseLost ID001"
    assert effects(key) == 0
    assert sql("SELECT outcome::text, attempt FROM idem_claim(%s)", key) == [("in_progress", 2)]
