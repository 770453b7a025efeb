"""lease: it is committed before the work, renewed during it, and fences the last
transaction. If this fails, two owners work for one key, or an owner that is too
late changes something."""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from datetime import timedelta

import psycopg
import pytest

from conftest import HANG_S, WAIT_S, effects, sql, wait_until
from idempotency_pg import Failed, KeyNotInProgress, LeaseLost, is_worth_repeating

LEASE = timedelta(minutes=5)
SHORT = timedelta(seconds=6)  # also enough for a slow machine


def inserting(db, key, answer=None):
    async def work(conn):
        await db.execute(conn, f"INSERT INTO effects VALUES ('{key}')")
        return answer

    return work


def outcome(key):
    return sql("SELECT outcome::text, attempt, response FROM idem_claim(%s, wait => false)", key)[0]


def take_over(key):
    """As an operator can, without waiting for the end of the lease."""
    sql("SELECT idem_forget(%s)", key)
    sql("SELECT idem_claim(%s, lease => '1 h')", key)


async def test_outcomes(db, key):
    async def body(held):
        assert (held.outcome, held.claimed, held.lost) == ("claimed", True, False)
        assert outcome(key) == ("in_progress", 1, None)
        assert sql("SELECT count(*) FROM pg_stat_activity WHERE usename = 'shop' AND state ~ 'transaction'") == [(0,)]
        return await held.commit(inserting(db, key, {"receipt": 1}))

    assert await db.lease(key, body, lease=LEASE, request="one") == {"receipt": 1}
    assert effects(key) == 1

    async def again(held):
        assert held.claimed is False
        return held.claim.response

    assert await db.lease(key, again, lease=LEASE, request="one") == {"receipt": 1}

    async def other(held):
        return held.outcome

    assert await db.lease(key, other, lease=LEASE, request="two") == "mismatch"


async def test_end_of_block(db, key):
    async def body(held):
        assert held.claimed

    await db.lease(key, body, lease=LEASE)
    assert outcome(key) == ("completed", 1, None)


async def test_complete(db, key):
    async def body(held):
        await held.complete({"receipt": 2})

    await db.lease(key, body, lease=LEASE)
    assert outcome(key) == ("completed", 1, {"receipt": 2})


async def test_error(db, key):
    """Frees the key at once."""

    async def body(held):
        raise KeyError("of the work")

    with pytest.raises(KeyError):
        await db.lease(key, body, lease=LEASE)
    assert outcome(key) == ("claimed", 2, None)


async def test_error_in_last_transaction(db, key):
    async def body(held):
        async def work(conn):
            await inserting(db, key)(conn)
            raise KeyError("of the work")

        await held.commit(work)

    with pytest.raises(KeyError):
        await db.lease(key, body, lease=LEASE)
    assert effects(key) == 0
    assert outcome(key) == ("claimed", 2, None)


async def test_answer_that_cannot_be_saved(db, key):
    """jsonb has no character 0."""

    async def body(held):
        await held.commit(inserting(db, key, {"note": "a\0b"}))

    with pytest.raises(db.errors):
        await db.lease(key, body, lease=LEASE)
    assert effects(key) == 0
    assert outcome(key) == ("claimed", 2, None)


async def test_final_failure(db, key):
    async def body(held):
        await held.fail({"declined": "no money"})

    await db.lease(key, body, lease=LEASE)
    assert outcome(key) == ("failed", 1, {"declined": "no money"})

    async def failing(held):
        raise Failed({"declined": "no card"})

    with pytest.raises(Failed):
        await db.lease(key + " raised", failing, lease=LEASE)
    assert outcome(key + " raised") == ("failed", 1, {"declined": "no card"})


async def test_renewal(db, key):
    """The work lasts longer than the lease, and is not interrupted."""

    async def body(held):
        start = sql("SELECT lease_until FROM idem_keys WHERE key = %s", key)[0][0]
        later = "SELECT lease_until > %s + interval '3 s' FROM idem_keys WHERE key = %s"
        await db.until(lambda: sql(later, start, key)[0][0])
        assert outcome(key)[:2] == ("in_progress", 1)
        await held.commit(inserting(db, key))

    await db.lease(key, body, lease=SHORT)
    assert effects(key) == 1
    assert outcome(key) == ("completed", 1, None)


async def test_lost_lease_is_noticed(db, key):
    """By looking at it, or because the block is cancelled."""
    steps = []

    async def body(held):
        take_over(key)
        steps.append("taken over")
        await db.until(lambda: held.lost)
        steps.append("noticed")
        held.check()

    with pytest.raises(LeaseLost) as error:
        await db.lease(key, body, lease=SHORT)
    assert error.value.__cause__ is not None
    assert steps == (["taken over", "noticed"] if type(db).__name__ == "Sync" else ["taken over"])
    assert outcome(key)[:2] == ("in_progress", 1)


async def test_lost_lease_is_not_committed(db, key):
    async def body(held):
        take_over(key)
        try:
            await held.commit(inserting(db, key))
        finally:
            assert held.lost

    with pytest.raises(LeaseLost):
        await db.lease(key, body, lease=LEASE)
    assert effects(key) == 0
    assert outcome(key)[:2] == ("in_progress", 1)

    async def forgotten(held):
        sql("SELECT idem_forget(%s)", key + " forgotten")
        await held.commit(inserting(db, key))

    with pytest.raises(LeaseLost):
        await db.lease(key + " forgotten", forgotten, lease=LEASE)
    assert effects(key) == 0


async def test_renewal_ends_with_the_block(db, key):
    """The next owner must not be disturbed, and no session stays busy."""

    async def body(held):
        raise KeyError

    with pytest.raises(KeyError):
        await db.lease(key, body, lease=SHORT)
    assert sql("SELECT attempt FROM idem_claim(%s, lease => '1 ms')", key) == [(2,)]
    expired = "SELECT lease_until < clock_timestamp() - interval '3 s' FROM idem_keys WHERE key = %s"
    await db.until(lambda: sql(expired, key)[0][0])


async def test_commit_without_answer(db, key, proxied):
    """Whether it was committed is asked before work is repeated."""
    through, proxy = proxied
    async with through:
        for number, cut in enumerate(("after", "before")):
            each = f"{key} {cut}"

            async def body(held):
                async def work(conn):
                    await inserting(db, each)(conn)
                    if proxy.cuts == number:
                        proxy.cut = cut
                    return {"cut": cut}

                return await held.commit(work)

            assert await through.lease(each, body, lease=LEASE) == {"cut": cut}
            assert proxy.cuts == number + 1
            assert effects(each) == 1
            assert outcome(each) == ("completed", 1, {"cut": cut})


async def test_restart_of_the_server(db, key):
    async def body(held):
        subprocess.run(
            ["pg_ctl", "restart", "-w", "-m", "fast", "-l", os.environ["PGLOG"]],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return await held.commit(inserting(db, key, {"receipt": 3}))

    assert await db.lease(key, body, lease=LEASE) == {"receipt": 3}
    assert effects(key) == 1
    assert outcome(key) == ("completed", 1, {"receipt": 3})


class BadPool:
    """A pool that raises an error when it takes a connection back, while bad."""

    def __init__(self, pool):
        self.bad = False
        if hasattr(pool, "acquire"):
            self.acquire = self._awaited(pool.acquire)
        elif hasattr(pool, "__aenter__"):
            self.connection = self._awaited(pool.connection)
        else:
            self.connection = self._plain(pool.connection)

    def _release(self):
        if self.bad:
            raise ConnectionResetError("of the pool")

    def _awaited(self, take):
        @contextlib.asynccontextmanager
        async def connection(timeout=None):
            async with take(timeout=timeout) as conn:
                yield conn
            self._release()

        return connection

    def _plain(self, take):
        @contextlib.contextmanager
        def connection(timeout=None):
            with take(timeout=timeout) as conn:
                yield conn
            self._release()

        return connection


async def test_error_after_commit(db, key):
    """The work is committed, and must not be repeated."""
    real, db.pool = db.pool, BadPool(db.pool)

    async def body(held):
        db.pool.bad = True
        return await held.commit(inserting(db, key, {"receipt": 4}))

    try:
        assert await db.lease(key, body, lease=LEASE) == {"receipt": 4}
    finally:
        db.pool = real
    assert effects(key) == 1
    assert outcome(key) == ("completed", 1, {"receipt": 4})


async def test_second_commit(db, key):
    async def body(held):
        await held.commit(inserting(db, key, {"receipt": 5}))
        for call in (held.commit(inserting(db, key)), held.fail()):
            with pytest.raises(KeyNotInProgress):
                await call
        raise Failed("too late")

    with pytest.raises(Failed):
        await db.lease(key, body, lease=LEASE)
    assert effects(key) == 1
    assert outcome(key) == ("completed", 1, {"receipt": 5})


async def test_commits_at_the_same_time(db, key):
    """Of two threads or tasks: the one whose changes were undone must not look as if
    it had succeeded."""

    async def body(held):
        if type(db).__name__ == "Sync":
            both = threading.Barrier(2)

            def commit(number):
                def work(conn):
                    conn.execute(f"INSERT INTO effects VALUES ('{key}')")
                    both.wait(WAIT_S)
                    return number

                try:
                    ends.append(held.held.commit(work))
                except KeyNotInProgress as error:
                    ends.append(type(error))

            threads = [threading.Thread(target=commit, args=(number,)) for number in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return
        inserted = []

        async def work(conn):
            await inserting(db, key)(conn)
            inserted.append(conn)
            while len(inserted) < 2:
                await asyncio.sleep(0.02)
            return inserted.index(conn)

        done = await asyncio.gather(held.commit(work), held.commit(work), return_exceptions=True)
        ends.extend(end if isinstance(end, int) else type(end) for end in done)

    ends = []
    await db.lease(key, body, lease=LEASE)
    assert len(ends) == 2 and ends.count(KeyNotInProgress) == 1
    assert effects(key) == 1
    (saved,) = set(ends) - {KeyNotInProgress}
    assert outcome(key) == ("completed", 1, saved)


async def test_answer_of_the_commit_that_has_succeeded(db, key):
    """Not that of another one, whose outcome is asked for."""

    async def body(held):
        async def work(conn):
            await held.commit(inserting(db, key, {"receipt": 9}))
            raise ConnectionResetError

        assert await held.commit(work) == {"receipt": 9}

    await db.lease(key, body, lease=LEASE)
    assert effects(key) == 1
    assert outcome(key) == ("completed", 1, {"receipt": 9})


async def test_second_commit_after_an_unknown_outcome(db, key, proxied, monkeypatch):
    monkeypatch.setattr("idempotency_pg._sync.COMMIT_TRIES", 1)
    monkeypatch.setattr("idempotency_pg.aio.COMMIT_TRIES", 1)
    through, proxy = proxied
    async with through:
        for number, cut in enumerate(("after", "before")):
            each = f"{key} {cut}"

            async def body(held):
                async def work(conn):
                    await inserting(db, each, {"cut": cut})(conn)
                    if proxy.cuts == number:
                        proxy.cut = cut
                    return {"cut": cut}

                with pytest.raises(Exception) as error:
                    await held.commit(work)
                assert is_worth_repeating(error.value)
                assert await held.commit(work) == {"cut": cut}
                with pytest.raises(KeyNotInProgress):
                    await held.commit(work)

            await through.lease(each, body, lease=LEASE)
            assert effects(each) == 1
            assert outcome(each) == ("completed", 1, {"cut": cut})


async def test_failure_after_a_commit_that_had_succeeded(db, key, proxied, monkeypatch):
    """It must not look as if the key had failed."""
    monkeypatch.setattr("idempotency_pg._sync.COMMIT_TRIES", 1)
    monkeypatch.setattr("idempotency_pg.aio.COMMIT_TRIES", 1)
    through, proxy = proxied

    async def body(held):
        async def work(conn):
            await inserting(db, key)(conn)
            proxy.cut = "after"

        with pytest.raises(Exception):
            await held.commit(work)
        with pytest.raises(KeyNotInProgress):
            await held.fail({"declined": "no money"})

    async with through:
        await through.lease(key, body, lease=LEASE)
    assert effects(key) == 1
    assert outcome(key) == ("completed", 1, None)


async def test_lease_error_of_work_is_not_a_loss(db, key):
    """It can be of another key."""

    async def body(held):
        async def work(conn):
            raise LeaseLost("of another key")

        with pytest.raises(LeaseLost):
            await held.commit(work)
        assert not held.lost
        await held.commit(inserting(db, key))

    await db.lease(key, body, lease=LEASE)
    assert effects(key) == 1


async def test_failed_commit_is_not_completed(db, key):
    """Although the block hides the error."""

    async def body(held):
        async def work(conn):
            raise KeyError("of the work")

        with pytest.raises(KeyError):
            await held.commit(work)

    await db.lease(key, body, lease=LEASE)
    assert outcome(key) == ("claimed", 2, None)


async def test_cancellation_comes_again(db, key):
    """A driver can swallow one."""

    async def body(held):
        take_over(key)
        for _ in range(2):
            try:
                await db.until(lambda: type(db).__name__ == "Sync" and held.lost)
            except asyncio.CancelledError:
                steps.append("cancelled")
        await db.until(lambda: type(db).__name__ == "Sync")
        held.check()

    steps = []
    with pytest.raises(LeaseLost):
        await db.lease(key, body, lease=SHORT)
    assert steps == ([] if type(db).__name__ == "Sync" else ["cancelled"] * 2)


# ---------------------------------------------------------------------------
# A renewal that does not get an answer
# ---------------------------------------------------------------------------

HANGING = timedelta(seconds=9)  # renewed after 3 s; a renewal is given up after 3 s


def no_renewal_goes_on():
    return not [thread for thread in threading.enumerate() if thread.name.startswith("lease of")]


async def test_lease_runs_out_during_a_renewal_that_hangs(db, key, proxied):
    """By the clock of the program, since it hears nothing from the server. If the
    block ends nevertheless, the server decides."""
    through, proxy = proxied
    is_sync = type(db).__name__ == "Sync"
    steps = []

    async def body(held):
        proxy.hang = b"idem_renew"
        await through.until(lambda: held.lost)
        steps.append("noticed")
        with pytest.raises(LeaseLost) as error:
            held.check()
        assert isinstance(error.value.__cause__, TimeoutError)

    async with through:
        start = time.monotonic()
        if is_sync:
            await through.lease(key, body, lease=HANGING)
        else:
            with pytest.raises(LeaseLost) as error:
                await through.lease(key, body, lease=HANGING)
            assert isinstance(error.value.__cause__, TimeoutError)
        assert 8.5 < time.monotonic() - start < 50
        assert proxy.hangs > 0
        wait_until(no_renewal_goes_on)
    assert steps == (["noticed"] if is_sync else [])
    assert sql("SELECT state FROM idem_keys WHERE key = %s", key) == [("completed" if is_sync else "in_progress",)]


async def test_lease_that_ran_out_and_was_taken_over(db, key, proxied):
    """Although the block hides it."""
    through, proxy = proxied

    async def body(held):
        proxy.hang = b"idem_renew"
        with contextlib.suppress(asyncio.CancelledError):
            await through.until(lambda: held.lost)
        take_over(key)

    async with through:
        with pytest.raises(LeaseLost):
            await through.lease(key, body, lease=SHORT)
        wait_until(no_renewal_goes_on)
    assert outcome(key)[:2] == ("in_progress", 1)


async def test_commit_does_not_wait_for_a_renewal_that_hangs(db, key, proxied):
    through, proxy = proxied
    lease = timedelta(seconds=30)

    async def body(held):
        proxy.hang = b"idem_renew"
        await through.until(lambda: proxy.standing)
        await held.commit(inserting(db, key, {"receipt": 6}))
        assert proxy.standing == 1
        assert not held.lost

    async with through:
        await through.lease(key, body, lease=lease)
    assert effects(key) == 1
    assert outcome(key) == ("completed", 1, {"receipt": 6})


async def test_renewal_that_hangs_is_repeated(db, key, proxied):
    """On another connection, in time."""
    through, proxy = proxied
    proxy.hangs_max = 1

    async def body(held):
        proxy.hang = b"idem_renew"
        [(start,)] = sql("SELECT lease_until FROM idem_keys WHERE key = %s", key)
        later = "SELECT lease_until > %s + interval '4 s' FROM idem_keys WHERE key = %s"
        await through.until(lambda: sql(later, start, key)[0][0])
        assert proxy.hangs == 1
        assert not held.lost
        await held.commit(inserting(db, key))

    async with through:
        await through.lease(key, body, lease=HANGING)
    assert effects(key) == 1


# asyncpg has no transaction unless it is asked for one.
@pytest.mark.parametrize("db", ["sync", "async psycopg"], indirect=True)
async def test_renewal_holds_no_lock(db, key, proxied):
    """The connection of a renewal that stands still between two statements would
    keep the row locked, and commit would wait for it."""
    through, proxy = type(db)(host=proxied[0].conninfo["host"], autocommit=False), proxied[1]

    async def body(held):
        proxy.hang = b"COMMIT"
        proxy.hangs_max = 1
        [(start,)] = sql("SELECT lease_until FROM idem_keys WHERE key = %s", key)
        later = "SELECT lease_until > %s + interval '1 s' FROM idem_keys WHERE key = %s"
        await through.until(lambda: sql(later, start, key)[0][0])
        proxy.hang = None
        assert proxy.hangs == 0
        await held.commit(inserting(db, key))

    async with through:
        await through.lease(key, body, lease=SHORT)
        if type(db).__name__ == "Sync":
            with through.pool.connection() as conn:
                assert conn.autocommit is False
        else:
            async with through.pool.connection() as conn:
                assert conn.autocommit is False
    assert effects(key) == 1


class LatePool(BadPool):
    """Its first connection comes back late; meanwhile another claimer has the key."""

    def __init__(self, pool, key):
        super().__init__(pool)
        self.key = key

    def _release(self):
        key, self.key = self.key, None
        if key is not None:
            time.sleep(SHORT.total_seconds() / 2)
            take_over(key)


async def test_claim_whose_answer_comes_too_late(db, key):
    """The block would do the work of another owner."""
    entered = []

    async def body(held):
        entered.append(held.lost)

    real, db.pool = db.pool, LatePool(db.pool, key)
    try:
        with pytest.raises(LeaseLost):
            await db.lease(key, body, lease=SHORT)
    finally:
        db.pool = real
    assert not entered
    assert outcome(key)[:2] == ("in_progress", 1)


async def test_claim_that_waits_for_longer_than_the_lease(db, key):
    """The lease begins when the wait is over."""

    async def body(held):
        assert not held.lost
        await held.commit(inserting(db, key))

    conn = await db.connect()
    await db.execute(conn, "BEGIN")
    await db.on(conn, "claim", key)
    waiting = asyncio.create_task(db.lease(key, body, lease=timedelta(seconds=3)))
    await asyncio.sleep(4)
    assert not waiting.done()
    await db.execute(conn, "ROLLBACK")
    await db.close(conn)
    await waiting
    assert effects(key) == 1


# ---------------------------------------------------------------------------
# ID003 of a renewal
# ---------------------------------------------------------------------------


async def test_key_that_the_program_has_completed_is_not_lost(db, key):
    """The program may call complete() by itself; the block goes on."""

    async def body(held):
        sql("SELECT idem_complete(%s, %s, %s)", key, held.claim.owned_token, '{"receipt": 7}')
        end = time.monotonic() + 1.5 * SHORT.total_seconds()
        await db.until(lambda: time.monotonic() > end)
        assert not held.lost
        held.check()

    await db.lease(key, body, lease=SHORT)
    assert outcome(key) == ("completed", 1, {"receipt": 7})


async def test_key_that_was_freed_and_completed_by_another_owner_is_lost(db, key):
    """Its completion is not ours, although a claim says completed."""

    async def body(held):
        module = sys.modules[type(held.held if hasattr(held, "held") else held).__module__]
        real = module.claim

        def instead(*arguments, **options):
            """Between the renewal and the claim that asks what became of the key."""
            module.claim = real
            [(token,)] = sql("SELECT token FROM idem_claim(%s, lease => '1 h')", key)
            sql("SELECT idem_complete(%s, %s)", key, token)
            return real(*arguments, **options)

        sql("SELECT idem_fail(%s, %s)", key, held.claim.owned_token)
        module.claim = instead
        try:
            await db.until(lambda: module.claim is real and (held.lost or held._ended))
        finally:
            module.claim = real
        assert held.lost

    with pytest.raises(LeaseLost):
        await db.lease(key, body, lease=HANGING)


async def test_key_that_was_freed_is_lost(db, key):
    """Anybody may have it."""

    async def body(held):
        sql("SELECT idem_fail(%s, %s)", key, held.claim.owned_token)
        await db.until(lambda: held.lost)
        held.check()

    start = time.monotonic()
    with pytest.raises(LeaseLost):
        await db.lease(key, body, lease=HANGING)
    assert time.monotonic() - start < 8.5  # by the first renewal, not by the clock
    assert outcome(key) == ("claimed", 2, None)


# ---------------------------------------------------------------------------
# A COMMIT that the program does not wait for
# ---------------------------------------------------------------------------


# Threads are not cancelled.
@pytest.mark.parametrize("db", ["async psycopg", "asyncpg"], indirect=True)
async def test_second_commit_after_a_cancelled_one(db, key, proxied):
    """The first one may have taken effect, so the server is asked."""
    through, proxy = proxied

    async def body(held):
        async def work(conn):
            await inserting(db, key, {"receipt": 8})(conn)
            if not proxy.cuts:
                proxy.cut = "hold"
            return {"receipt": 8}

        with contextlib.suppress(Exception):  # asyncpg can raise that of the connection
            async with asyncio.timeout(2):
                await held.commit(work)
        await db.until(lambda: effects(key) == 1)
        assert await held.commit(work) == {"receipt": 8}

    async with through:
        await through.lease(key, body, lease=LEASE)
    assert effects(key) == 1
    assert outcome(key) == ("completed", 1, {"receipt": 8})


@pytest.mark.parametrize("db", ["async psycopg", "asyncpg"], indirect=True)
async def test_cancelled_commit_does_not_wait_for_the_server(db, key, proxied):
    """asyncpg would send ROLLBACK to a server that does not answer."""
    through, proxy = proxied

    async def body(held):
        proxy.hang = b"idem_complete"
        proxy.hangs_max = 1
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await held.commit(inserting(db, key))
        assert time.monotonic() - start < HANG_S / 2
        await held.commit(inserting(db, key))

    async with through:
        await through.lease(key, body, lease=LEASE)
    assert proxy.hangs == 1
    assert effects(key) == 1


@pytest.mark.parametrize("db", ["async psycopg"], indirect=True)
async def test_time_limit_when_the_driver_waits_in_spite_of_a_cancellation(db, key, proxied, monkeypatch):
    """As psycopg 3.2 does, for the answer to its own cancel request."""
    through, proxy = proxied
    wait = psycopg.AsyncConnection.wait

    async def stubborn(conn, gen, *options):
        try:
            return await wait(conn, gen, *options)
        except asyncio.CancelledError:
            await wait(conn, gen, *options)
            raise

    async def body(held):
        proxy.hang = b"idem_fail"
        raise KeyError("of the work")

    async with through:
        start = time.monotonic()
        with monkeypatch.context() as patch, pytest.raises(KeyError):
            patch.setattr(psycopg.AsyncConnection, "wait", stubborn)
            await through.lease(key, body, lease=HANGING)
        assert time.monotonic() - start < HANG_S / 2
    assert proxy.hangs == 1
