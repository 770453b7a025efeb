"""Fixtures: the drivers, a key that is new, and programs that tests start.

The environment says where the server is, as for psql, and PGDATA. The role may
use the extension; ADMIN is a superuser.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import asyncpg
import psycopg
import psycopg_pool
import pytest

import idempotency_pg
from idempotency_pg import aio

WAIT_S = 180
HANG_S = 60
HOLD_S = 4
PROGRAMS = Path(__file__).parent / "programs"


def sql(statement, *values, dbname="postgres"):
    """What a superuser gets."""
    with psycopg.connect(user=os.environ["ADMIN"], dbname=dbname, autocommit=True) as conn:
        cursor = conn.execute(statement, values)
        return cursor.fetchall() if cursor.description else None


def effects(key):
    """How often the work for the key has taken effect."""
    return sql("SELECT count(*) FROM effects WHERE key = %s", key)[0][0]


def wait_until(condition):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


# ---------------------------------------------------------------------------
# Drivers: tests are coroutines, and their work is one too, so that the same
# test is for the synchronous functions, which run in threads.
# ---------------------------------------------------------------------------


def finish(coroutine):
    """Runs a coroutine that never has to wait."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


class Sync:
    """The functions of idempotency_pg, with a pool of psycopg_pool."""

    errors = psycopg.Error

    def __init__(self, **conninfo):
        self.conninfo = {"autocommit": True, **conninfo}

    async def __aenter__(self):
        self.pool = await asyncio.to_thread(psycopg_pool.ConnectionPool, min_size=1, max_size=30, kwargs=self.conninfo)

    async def __aexit__(self, *error):
        self.pool.close()

    async def connect(self):
        return psycopg.connect(**self.conninfo)

    async def close(self, conn):
        conn.close()

    async def execute(self, conn, statement):
        cursor = conn.execute(statement)
        return cursor.fetchall() if cursor.description else []

    async def until(self, condition):
        wait_until(condition)

    def _work(self, work):
        return lambda *arguments: finish(work(*arguments))

    async def on(self, conn, name, *arguments, **options):
        return await asyncio.to_thread(getattr(idempotency_pg, name), conn, *arguments, **options)

    async def call(self, name, *arguments, **options):
        def run():
            with self.pool.connection() as conn:
                return getattr(idempotency_pg, name)(conn, *arguments, **options)

        return await asyncio.to_thread(run)

    async def transaction(self, key, work, source=None, **options):
        source = source or self.pool
        return await asyncio.to_thread(idempotency_pg.transaction, source, key, self._work(work), **options)

    async def consume(self, scope, id, work, **options):
        return await asyncio.to_thread(idempotency_pg.consume, self.pool, scope, id, self._work(work), **options)

    def webhook_receiver(self, secret, work, **options):
        receive = idempotency_pg.webhook_receiver(self.pool, secret, self._work(work), **options)

        async def receive_in_thread(headers, body):
            return await asyncio.to_thread(receive, headers, body)

        return receive_in_thread

    async def lease(self, key, body, **options):
        """Runs body(held), and returns what it returns."""

        def run():
            with idempotency_pg.lease(self.pool, key, **options) as held:
                return finish(body(SyncHeld(held)))

        return await asyncio.to_thread(run)


class SyncHeld:
    def __init__(self, held):
        self.held = held

    def __getattr__(self, name):
        return getattr(self.held, name)

    async def commit(self, work):
        return self.held.commit(lambda conn: finish(work(conn)))

    async def complete(self, response=None):
        return self.held.complete(response)

    async def fail(self, answer=None):
        return self.held.fail(answer)


class Async:
    """The functions of idempotency_pg.aio."""

    def __init__(self, **conninfo):
        self.conninfo = conninfo

    async def until(self, condition):
        deadline = time.monotonic() + WAIT_S
        while not await asyncio.to_thread(condition):
            assert time.monotonic() < deadline, "waited in vain"
            await asyncio.sleep(0.02)

    async def __aexit__(self, *error):
        await self.pool.close()

    async def close(self, conn):
        await conn.close()

    async def on(self, conn, name, *arguments, **options):
        return await getattr(aio, name)(conn, *arguments, **options)

    async def call(self, name, *arguments, **options):
        take = self.pool.acquire if hasattr(self.pool, "acquire") else self.pool.connection
        async with take() as conn:
            return await getattr(aio, name)(conn, *arguments, **options)

    async def transaction(self, key, work, source=None, **options):
        return await aio.transaction(source or self.pool, key, work, **options)

    async def consume(self, scope, id, work, **options):
        return await aio.consume(self.pool, scope, id, work, **options)

    def webhook_receiver(self, secret, work, **options):
        return aio.webhook_receiver(self.pool, secret, work, **options)

    async def lease(self, key, body, **options):
        async with aio.lease(self.pool, key, **options) as held:
            return await body(held)


class AsyncPsycopg(Async):
    errors = psycopg.Error

    async def __aenter__(self):
        self.pool = psycopg_pool.AsyncConnectionPool(
            min_size=1, max_size=30, open=False, kwargs={"autocommit": True, **self.conninfo}
        )
        await self.pool.open(wait=True)

    async def connect(self):
        return await psycopg.AsyncConnection.connect(autocommit=True, **self.conninfo)

    async def execute(self, conn, statement):
        cursor = await conn.execute(statement)
        return await cursor.fetchall() if cursor.description else []


class Asyncpg(Async):
    errors = asyncpg.PostgresError

    async def __aenter__(self):
        self.pool = await asyncpg.create_pool(min_size=1, max_size=30, **self.conninfo)

    async def connect(self):
        return await asyncpg.connect(**self.conninfo)

    async def execute(self, conn, statement):
        return await conn.fetch(statement)


DRIVERS = {"sync": Sync, "async psycopg": AsyncPsycopg, "asyncpg": Asyncpg}


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Runs tests that are coroutines, with the pool of their driver open."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def run():
        async with arguments["db"]:
            await pyfuncitem.obj(**arguments)

    asyncio.run(run())
    return True


@pytest.fixture(params=DRIVERS, ids=lambda name: name.replace(" ", "_"))
def db(request):
    return DRIVERS[request.param]()


@pytest.fixture
def key():
    return str(uuid.uuid4())


@pytest.fixture
def proxied(db, tmp_path):
    """The same driver, through a proxy, and that proxy."""
    proxy = Proxy(tmp_path)
    yield type(db)(host=str(tmp_path)), proxy
    proxy.close()


# ---------------------------------------------------------------------------
# A proxy that loses COMMIT, or the answer to it, or that stands still
# ---------------------------------------------------------------------------


class Proxy:
    """If cut is "before" or "after", the next connection that sends COMMIT is cut
    before the server gets it, or before the client gets the answer; with "hold" that
    is after HOLD_S. While hang is a text, each connection that
    sends it stands still; so do at most hangs_max of them."""

    def __init__(self, directory):
        self.cut = None
        self.cuts = 0
        self.hang = None
        self.hangs = 0
        self.hangs_max = 1000
        self.standing = 0
        name = f".s.PGSQL.{os.environ['PGPORT']}"
        self.server = os.path.join(os.environ["PGHOST"], name)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(directory / name))
        self.listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self.server)
            mute = threading.Event()
            threading.Thread(target=self._upstream, args=(client, server, mute), daemon=True).start()
            threading.Thread(target=self._copy, args=(server, client, mute), daemon=True).start()

    def _copy(self, source, target, mute):
        try:
            while data := source.recv(65536):
                if not mute.is_set():
                    target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _upstream(self, client, server, mute):
        try:
            while data := client.recv(65536):
                if self.hang and self.hang in data and self.hangs < self.hangs_max:
                    self._stand_still(client)
                    break
                if self.cut and b"COMMIT" in data:
                    cut, self.cut = self.cut, None
                    self.cuts += 1
                    if cut == "hold":
                        mute.set()
                        server.sendall(data)
                        time.sleep(HOLD_S)
                    client.shutdown(socket.SHUT_RDWR)
                    if cut == "after":
                        server.sendall(data)
                    break
                server.sendall(data)
        except OSError:
            pass
        server.shutdown(socket.SHUT_WR)

    def _stand_still(self, client):
        """Until the client gives up, or HANG_S are over, so that a test that fails
        also ends."""
        self.hangs += 1
        self.standing += 1
        client.settimeout(HANG_S)
        try:
            while client.recv(65536):
                pass
        except OSError:
            pass
        self.standing -= 1
        client.shutdown(socket.SHUT_RDWR)


# ---------------------------------------------------------------------------
# Programs
# ---------------------------------------------------------------------------


class Program:
    """A program of tests/programs, which prints lines."""

    def __init__(self, file, *arguments):
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", sys.executable, "-B", "-u", PROGRAMS / file, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self):
        return self.process.stdout.readline().rstrip("\n")

    def port(self):
        """Of a server, which prints it when it listens."""
        return int(self.line().removeprefix("listening "))

    def say(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def kill(self):
        """Ends it as a crash does."""
        self.process.kill()
        self.process.wait()

    def signal(self, number):
        self.process.send_signal(number)

    def stop(self):
        self.kill()
        self.process.stdin.close()
        self.process.stdout.close()


def started():
    programs = []

    def start(*command):
        programs.append(Program(*command))
        return programs[-1]

    yield start
    for program in programs:
        program.stop()


@pytest.fixture(name="start")
def start_fixture():
    """Starts programs, which end with the test."""
    yield from started()


@pytest.fixture(name="start_server", scope="module")
def start_server_fixture():
    """The same, for all tests of a file."""
    yield from started()


@pytest.fixture(scope="session", autouse=True)
def tables():
    sql("CREATE TABLE IF NOT EXISTS effects (key text NOT NULL)")
    sql("CREATE TABLE IF NOT EXISTS gates (name text NOT NULL)")
    sql("GRANT ALL ON effects, gates TO PUBLIC")
