"""Calls the functions by a Python driver as an application does, and prints a
line for each step.  t/drivers.pl has the expected lines.

Arguments: the driver, and a file with the example of docs/drivers.md; or a file
with SQL, a statement a line, which is executed instead.
"""

import asyncio
import datetime
import json
import runpy
import sys
import time

SCOPE = "drivers"
ANSWER = {"order": 17, "note": "Grüße, 漢字"}
LATER = datetime.datetime(2040, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)


# A driver has rows(), which takes a query with question marks and positional
# parameters and returns a list of tuples; transaction(); and conversions of
# values: interval() of seconds, to_json() and from_json(), and sqlstate() of an
# error.


class Psycopg:
    @staticmethod
    def interval(seconds):
        return f"{seconds} s"

    def __init__(self):
        import psycopg
        from psycopg.types.json import Jsonb
        self.connection = psycopg.connect(autocommit=True)
        self.to_json = Jsonb
        self.transaction = self.connection.transaction

    def rows(self, sql, *values):
        return self.connection.execute(sql.replace("?", "%s"), values).fetchall()

    def execute(self, sql):
        self.connection.cursor().execute(sql)

    def from_json(self, value):
        return value

    def sqlstate(self, error):
        return error.sqlstate

    def checkout(self, example, *arguments):
        return example["checkout"](self.connection, *arguments)


class Psycopg2(Psycopg):
    def __init__(self):
        import psycopg2
        from psycopg2.extras import Json
        self.connection = psycopg2.connect("")
        self.connection.autocommit = True
        self.to_json = Json

    def transaction(self):
        return self.connection

    def rows(self, sql, *values):
        cursor = self.connection.cursor()
        cursor.execute(sql.replace("?", "%s"), values)
        return cursor.fetchall()

    def sqlstate(self, error):
        return error.pgcode


class SQLAlchemy(Psycopg):
    def __init__(self):
        import sqlalchemy
        self.text = sqlalchemy.text
        self.connection = sqlalchemy.create_engine("postgresql+psycopg2://")
        self.to_json = json.dumps
        self.open = None

    # Calls in it are one transaction; other calls are a transaction each.
    def transaction(self):
        driver = self

        class Transaction:
            def __enter__(self):
                self.begun = driver.connection.begin()
                driver.open = self.begun.__enter__()

            def __exit__(self, *error):
                driver.open = None
                return self.begun.__exit__(*error)

        return Transaction()

    def rows(self, sql, *values):
        for number in range(len(values)):
            sql = sql.replace("?", f":p{number}", 1)
        named = {f"p{number}": value for number, value in enumerate(values)}
        if self.open is not None:
            return self.open.execute(self.text(sql), named).all()
        with self.connection.begin() as connection:
            return connection.execute(self.text(sql), named).all()

    def execute(self, sql):
        if self.open is None:
            self.open = self.connection.connect().execution_options(isolation_level="AUTOCOMMIT")
        self.open.exec_driver_sql(sql)

    def sqlstate(self, error):
        return error.orig.pgcode


class Asyncpg:
    @staticmethod
    def interval(seconds):
        return datetime.timedelta(seconds=seconds)

    def __init__(self):
        import asyncpg
        self.loop = asyncio.new_event_loop()
        self.connection = self.wait(asyncpg.connect())
        self.to_json = json.dumps
        self.from_json = json.loads

    def wait(self, awaitable):
        return self.loop.run_until_complete(awaitable)

    def transaction(self):
        driver, transaction = self, self.connection.transaction()

        class Transaction:
            def __enter__(self):
                driver.wait(transaction.__aenter__())

            def __exit__(self, *error):
                return driver.wait(transaction.__aexit__(*error))

        return Transaction()

    def rows(self, sql, *values):
        for number in range(len(values)):
            sql = sql.replace("?", f"${number + 1}", 1)
        return [tuple(row) for row in self.wait(self.connection.fetch(sql, *values))]

    def execute(self, sql):
        self.wait(self.connection.execute(sql))

    def sqlstate(self, error):
        return error.sqlstate

    def checkout(self, example, *arguments):
        return self.wait(example["checkout"](self.connection, *arguments))


def claims(db):
    def claim(request):
        return db.rows("SELECT outcome, token, attempt, response FROM idem_claim(?, ?, ?, ?)",
                       "key", SCOPE, db.interval(40), request)[0]

    outcome, token, attempt, _ = claim("request")
    print(f"claim: {outcome} {attempt}")
    print(f"claim again: {claim('request')[0]}")
    print(f"claim for another request: {claim('other')[0]}")
    db.rows("SELECT idem_complete(?, ?, ?, ?)", "key", token, db.to_json(ANSWER), SCOPE)
    outcome, _, _, response = claim("request")
    response = db.from_json(response)
    print(f"replay: {outcome} {response['order']} {response['note']}")

    many = db.rows("SELECT key, outcome FROM idem_claim_many(?, ?)", ["key", "new"], SCOPE)
    print("claim many: " + ", ".join(f"{key} {outcome}" for key, outcome in many))


def events(db):
    [(position,)] = db.rows("SELECT outbox_enqueue(?, ?, ?, ?, ?, ?)", "order.placed", db.to_json(ANSWER), "ann",
                            "order", db.to_json({"X-Shop": "hats"}), LATER)
    print(f"enqueue: {str(position > 0).lower()}")


def reservations(db):
    [(outcome,)] = db.rows("SELECT outcome FROM stock_reserve(?, ?, ?, ?, ?)", "hat", 2, "one", db.interval(7200), "ann")
    print(f"reserve: {outcome}")
    [(outcome,)] = db.rows("SELECT outcome FROM stock_reserve(?, ?, ?)", "hat", 1, "two")
    print(f"reserve by three parameters: {outcome}")
    [(outcome,)] = db.rows("SELECT outcome FROM stock_reserve_many(?, ?)", db.to_json({"hat": 1, "scarf": 2}), "many")
    print(f"reserve many: {outcome}")

    wanted = [{"sku": "hat", "quantity": 100}, {"sku": "scarf", "quantity": 1}]
    [(outcome, shortages)] = db.rows("SELECT outcome, shortages FROM stock_reserve_many(?, ?)", db.to_json(wanted), "too many")
    print(f"shortage: {outcome} " + ", ".join(
        f"{line['sku']} {line['wanted']} {line['available']} {line['missing']}" for line in db.from_json(shortages)))

    [(outcome,)] = db.rows("SELECT outcome FROM stock_confirm(?, ?)", "many", ["hat"])
    print(f"confirm: {outcome}")
    [(state, lines)] = db.rows("SELECT state, lines FROM stock_reservation_status(?)", "many")
    print(f"status: {state}, " + ", ".join(f"{line['sku']} {line['state']}" for line in db.from_json(lines)))


def lost_lease(db):
    def claim():
        return db.rows("SELECT token FROM idem_claim(?, ?, ?)", "lost", SCOPE, db.interval(0.001))[0][0]

    token = claim()
    time.sleep(0.05)
    claim()
    try:
        with db.transaction():
            db.rows("SELECT stock_reserve(?, ?, ?)", "hat", 1, "lost")
            db.rows("SELECT idem_complete(?, ?, ?, ?)", "lost", token, db.to_json(ANSWER), SCOPE)
    except Exception as error:
        print(f"lost lease: {db.sqlstate(error)}")
    [(available, reserved)] = db.rows("SELECT available, reserved FROM stock_level(?)", "hat")
    print(f"level: {available} {reserved}")


def example(db, file):
    functions = runpy.run_path(file)

    def outcome(*arguments):
        try:
            return db.checkout(functions, *arguments)["outcome"]
        except RuntimeError as error:
            return error

    print(f"checkout: {outcome('order-1', {'cup': 2, 'plate': 2})}")
    print(f"checkout again: {outcome('order-1', {'cup': 2, 'plate': 2})}")
    print(f"checkout of another order: {outcome('order-1', {'cup': 3})}")
    print(f"checkout of too much: {outcome('order-2', {'cup': 20})}")


def execute_all(db, file):
    with open(file, encoding="utf-8") as statements:
        for statement in statements:
            db.execute(statement)
    print("executed")


DRIVERS = {"psycopg": Psycopg, "psycopg2": Psycopg2, "sqlalchemy": SQLAlchemy, "asyncpg": Asyncpg}


def main(name, file):
    sys.stdout.reconfigure(encoding="utf-8")
    db = DRIVERS[name]()
    if file.endswith(".sql"):
        execute_all(db, file)
        return
    claims(db)
    events(db)
    reservations(db)
    lost_lease(db)
    example(db, file)


main(*sys.argv[1:])
