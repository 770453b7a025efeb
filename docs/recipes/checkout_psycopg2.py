"""Takes an order once for each key, with psycopg2.

conn is a connection, and lines has the quantities, such as {"cup": 2, "plate": 1}.
The steps are explained in docs/drivers.md, "The examples".
"""

import json
from psycopg2.extras import Json


def checkout(conn, key, lines):
    with conn, conn.cursor() as cursor:
        cursor.execute("SELECT outcome, token, response FROM idem_claim(%s, %s, %s, %s)",
                       (key, "checkout", "40 s", json.dumps(lines, sort_keys=True)))
        outcome, token, response = cursor.fetchone()
    if outcome == "completed":
        return response
    if outcome != "claimed":
        raise RuntimeError(outcome)

    with conn, conn.cursor() as cursor:
        cursor.execute("SELECT outcome FROM stock_reserve_many(%s, %s)", (Json(lines), key))
        (outcome,) = cursor.fetchone()
        if outcome == "reserved":
            cursor.execute("SELECT outbox_enqueue(%s, %s, %s)", ("order.placed", Json(lines), key))
        cursor.execute("SELECT idem_complete(%s, %s, %s, %s)", (key, token, Json({"outcome": outcome}), "checkout"))
    return {"outcome": outcome}
