"""Takes an order once for each key, with asyncpg.

conn is a connection, and lines has the quantities, such as {"cup": 2, "plate": 1}.
The steps are explained in docs/drivers.md, "The examples".
"""

import json
from datetime import timedelta


async def checkout(conn, key, lines):
    order = json.dumps(lines, sort_keys=True)
    claim = await conn.fetchrow("SELECT outcome, token, response FROM idem_claim($1, $2, $3, $4)",
                                key, "checkout", timedelta(seconds=40), order)
    if claim["outcome"] == "completed":
        return json.loads(claim["response"])
    if claim["outcome"] != "claimed":
        raise RuntimeError(claim["outcome"])

    async with conn.transaction():
        outcome = await conn.fetchval("SELECT outcome FROM stock_reserve_many($1, $2)", order, key)
        if outcome == "reserved":
            await conn.execute("SELECT outbox_enqueue($1, $2, $3)", "order.placed", order, key)
        answer = {"outcome": outcome}
        await conn.execute("SELECT idem_complete($1, $2, $3, $4)", key, claim["token"], json.dumps(answer), "checkout")
    return answer
