/*
 * What stock_reserve is measured against: what an application would write for
 * itself.  A reservation has a unique name, so that a retry does not book
 * twice.
 *
 * None of the recipes knows of expiry or of confirming, and none keeps an index
 * for that or for an item's history: this is in favour of the recipes.
 */

CREATE EXTENSION idempotency;

CREATE TABLE peer_item (
	sku       text COLLATE "C" PRIMARY KEY,
	available bigint NOT NULL CHECK (available >= 0)
) WITH (fillfactor = 50);

CREATE TABLE peer_log (
	quantity    bigint NOT NULL,
	at          timestamptz NOT NULL DEFAULT clock_timestamp(),
	sku         text COLLATE "C" NOT NULL,
	reservation text COLLATE "C" PRIMARY KEY,
	actor       text NOT NULL DEFAULT session_user
);

/* What no recipe of one durable row can be faster than. */
CREATE TABLE peer_bare (LIKE peer_log INCLUDING ALL);

/* The stock of one item, split over some rows. */
CREATE TABLE peer_slot (
	sku       text COLLATE "C",
	slot      integer,
	available bigint NOT NULL CHECK (available >= 0),
	PRIMARY KEY (sku, slot)
) WITH (fillfactor = 50);

/* A look at the name first, so that a retry waits for nobody. */
CREATE FUNCTION reserve_row(
	the_sku text, wanted bigint, name text,
	OUT outcome text, OUT remaining bigint)
LANGUAGE plpgsql AS $$
BEGIN
	PERFORM FROM peer_log WHERE reservation = name;
	IF FOUND THEN
		outcome := 'reserved';
		RETURN;
	END IF;
	UPDATE peer_item SET available = available - wanted
	WHERE sku = the_sku AND available >= wanted
	RETURNING available INTO remaining;
	IF FOUND THEN
		INSERT INTO peer_log (sku, quantity, reservation)
		VALUES (the_sku, wanted, name);
		outcome := 'reserved';
		RETURN;
	END IF;
	SELECT available INTO remaining FROM peer_item WHERE sku = the_sku;
	outcome := CASE WHEN FOUND THEN 'insufficient' ELSE 'unknown_sku' END;
END
$$;

/*
 * Any row that nobody has locked; if there is none, whoever is waited for.  It
 * does not look further when no single row has enough, and says nothing of what
 * remains in all.
 */
CREATE FUNCTION reserve_slot(
	the_sku text, wanted bigint, name text, OUT outcome text)
LANGUAGE plpgsql AS $$
DECLARE
	free integer;
BEGIN
	SELECT slot INTO free FROM peer_slot
	WHERE sku = the_sku AND available >= wanted LIMIT 1 FOR UPDATE SKIP LOCKED;
	IF NOT FOUND THEN
		SELECT slot INTO free FROM peer_slot
		WHERE sku = the_sku AND available >= wanted LIMIT 1 FOR UPDATE;
	END IF;
	IF FOUND THEN
		UPDATE peer_slot SET available = available - wanted
		WHERE sku = the_sku AND slot = free;
		INSERT INTO peer_log (sku, quantity, reservation)
		VALUES (the_sku, wanted, name);
		outcome := 'reserved';
	ELSE
		outcome := 'insufficient';
	END IF;
END
$$;
