"""Works for a key until it is killed. Arguments: the driver, what to do, the key.
It prints a line at each step, and then waits to be killed where it was told.

    before COMMIT, after COMMIT     in a transaction
    lease                           with a lease of 6 s, until a line is read
"""

import asyncio
import sys
import time
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from conftest import DRIVERS  # noqa: E402

from idempotency_pg import LeaseLost  # noqa: E402


def wait_to_be_killed(where):
    print(where)
    while True:
        time.sleep(60)


async def in_transaction(db, what, key):
    async def work(conn):
        await db.execute(conn, f"INSERT INTO effects VALUES ('{key}')")
        if what == "before COMMIT":
            wait_to_be_killed(what)
        return {"answer": 42}

    await db.transaction(key, work)
    wait_to_be_killed(what)


async def with_lease(db, key):
    async def body(held):
        print(held.outcome)
        # Blocks the event loop too, as a process that is stopped does.
        sys.stdin.readline()

        async def work(conn):
            await db.execute(conn, f"INSERT INTO effects VALUES ('{key}')")

        await held.commit(work)

    try:
        await db.lease(key, body, lease=timedelta(seconds=6))
        print("done")
    except LeaseLost as error:
        print(f"LeaseLost {error.sqlstate}")


async def main(driver, what, key):
    db = DRIVERS[driver]()
    async with db:
        if what == "lease":
            await with_lease(db, key)
        else:
            await in_transaction(db, what, key)


asyncio.run(main(*sys.argv[1:]))
