"""Takes an order once for each key, with SQLAlchemy.

engine is an Engine on psycopg2, and lines has the quantities, such as {"cup": 2, "plate": 1}.
The steps are explained in docs/drivers.md, "The examples".
"""

import json
from sqlalchemy import text


def checkout(engine, key, lines):
    order = json.dumps(lines, sort_keys=True)
    with engine.begin() as db:
        claim = db.execute(text("SELECT outcome, token, response FROM idem_claim(:key, 'checkout', :lease, :order)"),
                           {"key": key, "lease": "40 s", "order": order}).one()
    if claim.outcome == "completed":
        return claim.response
    if claim.outcome != "claimed":
        raise RuntimeError(claim.outcome)

    with engine.begin() as db:
        outcome = db.execute(text("SELECT outcome FROM stock_reserve_many(:order, :key)"), {"order": order, "key": key}).scalar()
        if outcome == "reserved":
            db.execute(text("SELECT outbox_enqueue('order.placed', :order, :key)"), {"order": order, "key": key})
        answer = {"outcome": outcome}
        db.execute(text("SELECT idem_complete(:key, :token, :answer, 'checkout')"),
                   {"key": key, "token": claim.token, "answer": json.dumps(answer)})
    return answer
