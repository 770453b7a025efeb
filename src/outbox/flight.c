/*
 * flight.c
 *		outbox_flights, outbox_shares, outbox_rate_limited, outbox_troubles and
 *		outbox_unreplicated_since: what the relays of this database have in
 *		flight, what they may have, what waits for the limit of a rate, what
 *		they cannot serve, and whether they wait for a standby.
 */
#include "postgres.h"

#include "funcapi.h"
#include "utils/builtins.h"

#include "base/compat.h"
#include "base/shared.h"

PG_FUNCTION_INFO_V1(outbox_flights);
PG_FUNCTION_INFO_V1(outbox_shares);
PG_FUNCTION_INFO_V1(outbox_rate_limited);
PG_FUNCTION_INFO_V1(outbox_unreplicated_since);
PG_FUNCTION_INFO_V1(outbox_turns);
PG_FUNCTION_INFO_V1(outbox_troubles);

/* Sets the columns of a row; false: there is none for this subscription. */
typedef bool (*FlightRow) (const SharedFlight *flight, Datum *values);

static Datum
flight_rows(FunctionCallInfo fcinfo, uint32 flags, FlightRow set_row)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	SharedDatabase *database = shared_find_my_database();
	SharedFlight *flights;
	int			count;

	InitMaterializedSRF(fcinfo, flags);
	if (database == NULL)
		return (Datum) 0;
	count = shared_copy_flights(database, &flights);
	for (int i = 0; i < count; i++)
	{
		Datum		values[2];
		bool		nulls[2] = {false, false};

		if (set_row(&flights[i], values))
			tuplestore_putvalues(result->setResult, result->setDesc, values,
								 nulls);
	}
	return (Datum) 0;
}

static bool
flight_set_in_flight(const SharedFlight *flight, Datum *values)
{
	values[0] = Int64GetDatum(flight->subscription);
	values[1] = Int32GetDatum(flight->in_flight);
	return true;
}

/*
 * SQL: outbox_flights(), a row for each subscription of a relay.
 */
Datum
outbox_flights(PG_FUNCTION_ARGS)
{
	return flight_rows(fcinfo, 0, flight_set_in_flight);
}

static bool
flight_set_share(const SharedFlight *flight, Datum *values)
{
	values[0] = Int64GetDatum(flight->subscription);
	values[1] = Float8GetDatum(flight->share);
	return flight->in_flight > 0;
}

/*
 * SQL: outbox_shares(), a row for each subscription of a relay with requests in
 * flight.
 */
Datum
outbox_shares(PG_FUNCTION_ARGS)
{
	return flight_rows(fcinfo, 0, flight_set_share);
}

static bool
flight_set_rate_limited(const SharedFlight *flight, Datum *values)
{
	values[0] = Int64GetDatum(flight->subscription);
	return flight->rate_limited;
}

/*
 * SQL: outbox_rate_limited(), the subscriptions whose events wait for the limit
 * of the rate.
 */
Datum
outbox_rate_limited(PG_FUNCTION_ARGS)
{
	return flight_rows(fcinfo, MAT_SRF_USE_EXPECTED_DESC,
					   flight_set_rate_limited);
}

/*
 * SQL: outbox_unreplicated_since(), since when the relays send nothing new, as
 * no synchronous standby has it; null: they do not wait for one.
 */
Datum
outbox_unreplicated_since(PG_FUNCTION_ARGS)
{
	SharedDatabase *database = shared_find_my_database();
	TimestampTz since = 0;

	if (database != NULL)
		since = pg_atomic_read_u64(&database->unreplicated_since);
	if (since == 0)
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(since);
}

/*
 * SQL: outbox_turns(), a row for each relay that does not rest: when the turn
 * of its loop has begun, and the subscription that it is at, or null.
 */
Datum
outbox_turns(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	SharedDatabase *database = shared_find_my_database();

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; database != NULL && i < SHARED_RELAYS_MAX; i++)
	{
		SharedRelay *relay = &database->relays[i];
		TimestampTz since = pg_atomic_read_u64(&relay->turn_since);
		int64		subscription = pg_atomic_read_u64(&relay->turn_at);
		Datum		values[3];
		bool		nulls[3] = {false, false, subscription == 0};

		if (since == 0)
			continue;
		values[0] = Int32GetDatum(i + 1);
		values[1] = TimestampTzGetDatum(since);
		values[2] = Int64GetDatum(subscription);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * SQL: outbox_troubles(), a row for each subscription that a relay cannot
 * serve.
 */
Datum
outbox_troubles(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	SharedDatabase *database = shared_find_my_database();
	SharedTrouble *troubles;
	int			count;

	InitMaterializedSRF(fcinfo, 0);
	if (database == NULL)
		return (Datum) 0;
	count = shared_copy_troubles(database, &troubles);
	for (int i = 0; i < count; i++)
	{
		Datum		values[2];
		bool		nulls[2] = {false, false};

		values[0] = Int64GetDatum(troubles[i].subscription);
		values[1] = CStringGetTextDatum(troubles[i].error);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}
