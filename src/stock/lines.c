/*
 * lines.c
 *		Reads and checks the arguments of the stock functions.
 *
 * Nothing here reads a table: a bad argument is refused before anything else
 * happens.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "common/int.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"
#include "utils/numeric.h"

#include "base/args.h"
#include "base/catalog.h"
#include "base/compat.h"
#include "base/errors.h"
#include "base/settings.h"
#include "stock/lines.h"
#include "stock/stock.h"

/* How much of a number that is no quantity an error shows. */
#define LINES_NUMBER_SHOWN_MAX 40

PG_FUNCTION_INFO_V1(stock_check_sku);
PG_FUNCTION_INFO_V1(stock_check_reservation);

static text *
lines_check_name(text *value, const char *name)
{
	args_check_not_empty(value, name);
	args_check_length(value, name, STOCK_NAME_MAX);
	args_check_encoding(value);
	return value;
}

text *
lines_name_arg(FunctionCallInfo fcinfo, int arg, const char *name)
{
	return lines_check_name(args_text(fcinfo, arg, name), name);
}

/*
 * The SQL functions may be older than the library and lack this argument.
 * catalog_get raises an error in that case, before the argument is read.
 */
text *
lines_actor_arg(FunctionCallInfo fcinfo, int arg)
{
	(void) catalog_get();
	if (PG_ARGISNULL(arg))
		return cstring_to_text(GetUserNameFromId(GetSessionUserId(), false));
	return lines_name_arg(fcinfo, arg, "actor");
}

text *
lines_note_arg(FunctionCallInfo fcinfo, int arg)
{
	text	   *note;

	if (PG_ARGISNULL(arg))
		return NULL;
	note = PG_GETARG_TEXT_PP(arg);
	args_check_length(note, "note", STOCK_NOTE_MAX);
	args_check_encoding(note);
	return note;
}

static void
lines_check_quantity(const text *sku, bool isnull, int64 quantity)
{
	if (isnull)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("quantity must not be null"),
				 errdetail("The sku is \"%s\".", text_to_cstring(sku))));
	if (quantity <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("quantity must be positive"),
				 errdetail("The quantity of \"%s\" is %lld.",
						   text_to_cstring(sku), (long long) quantity)));
}

StockLines
lines_single_arg(FunctionCallInfo fcinfo, int sku_arg, const char *sku_name,
				 int quantity_arg)
{
	StockLines	lines = {.count = 1, .line = palloc0(sizeof(StockLine))};

	lines.line->sku = lines_name_arg(fcinfo, sku_arg, sku_name);
	if (!PG_ARGISNULL(quantity_arg))
		lines.line->quantity = PG_GETARG_INT64(quantity_arg);
	lines_check_quantity(lines.line->sku, PG_ARGISNULL(quantity_arg),
						 lines.line->quantity);
	return lines;
}

static int
lines_compare(const void *a, const void *b)
{
	return args_compare_texts(((const StockLine *) a)->sku,
							  ((const StockLine *) b)->sku);
}

static void
lines_raise_range(const text *sku)
{
	ereport(ERROR,
			(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
			 errmsg("quantity of \"%s\" is out of range",
					text_to_cstring(sku))));
}

/*
 * Sorts the lines, merges those with the same sku, and numbers them.
 */
static void
lines_sum(StockLines *lines)
{
	int			count = 0;

	qsort(lines->line, lines->count, sizeof(StockLine), lines_compare);
	for (int i = 0; i < lines->count; i++)
	{
		StockLine  *last = &lines->line[count - 1];

		if (count == 0 || lines_compare(last, &lines->line[i]) != 0)
			lines->line[count++] = lines->line[i];
		else if (pg_add_s64_overflow(last->quantity, lines->line[i].quantity,
									 &last->quantity))
			lines_raise_range(last->sku);
	}
	lines->count = count;
	for (int i = 0; i < count; i++)
		lines->line[i].number = i;
}

static void
lines_check_count(const char *name, int count)
{
	if (count == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be empty", name)));
	if (count > STOCK_LINES_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("too many %s", name),
				 errdetail("There are %d; the limit is %d.",
						   count, STOCK_LINES_MAX)));
}

static int
lines_form_hint(void)
{
	return errhint("Write {\"sku\": quantity, ...} or [{\"sku\": \"...\", \"quantity\": quantity}, ...].");
}

static void
lines_raise_form(const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("lines must be an object of quantities or an array of lines"),
			 errdetail("%s", detail),
			 lines_form_hint()));
}

static text *
lines_json_sku(const JsonbValue *value)
{
	text	   *sku = cstring_to_text_with_len(value->val.string.val,
											   value->val.string.len);

	return lines_check_name(sku, "sku");
}

static int64
lines_json_quantity(const text *sku, JsonbValue *value)
{
	if (value->type == jbvNumeric)
	{
		Datum		number = NumericGetDatum(value->val.numeric);
		Datum		max = NumericGetDatum(int64_to_numeric(PG_INT64_MAX));
		Datum		size = DirectFunctionCall1(numeric_abs, number);
		Datum		whole = DirectFunctionCall1(numeric_floor, number);

		if (DatumGetBool(DirectFunctionCall2(numeric_gt, size, max)))
			lines_raise_range(sku);
		if (DatumGetBool(DirectFunctionCall2(numeric_eq, number, whole)))
			return DatumGetInt64(DirectFunctionCall1(numeric_int8, number));
	}
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("quantity must be an integer"),
			 value->type == jbvNumeric ?
			 errdetail("The quantity of \"%s\" is %.*s.", text_to_cstring(sku),
					   LINES_NUMBER_SHOWN_MAX,
					   numeric_normalize(value->val.numeric)) :
			 errdetail("The quantity of \"%s\" is of type %s.",
					   text_to_cstring(sku), JsonbTypeName(value)),
			 value->type == jbvNumeric ? 0 : lines_form_hint()));
}

/*
 * Makes a line from the jsonb values of its sku and its quantity.
 */
static StockLine
lines_json_line(const JsonbValue *sku, JsonbValue *quantity)
{
	StockLine	line = {.sku = lines_json_sku(sku)};

	Assert(quantity != NULL);
	line.quantity = lines_json_quantity(line.sku, quantity);
	lines_check_quantity(line.sku, false, line.quantity);
	return line;
}

static void
lines_read_object(StockLines *lines, JsonbContainer *object)
{
	JsonbIterator *members = JsonbIteratorInit(object);
	JsonbValue	sku;
	JsonbValue	quantity;

	(void) JsonbIteratorNext(&members, &sku, false);
	while (JsonbIteratorNext(&members, &sku, true) == WJB_KEY)
	{
		(void) JsonbIteratorNext(&members, &quantity, true);
		lines->line[lines->count++] = lines_json_line(&sku, &quantity);
	}
}

/*
 * Other members of a line, such as its price, are ignored.
 */
static void
lines_read_array(StockLines *lines, JsonbContainer *array)
{
	for (uint32 i = 0; i < JsonContainerSize(array); i++)
	{
		JsonbValue *element = getIthJsonbValueFromContainer(array, i);
		JsonbValue *sku;
		JsonbValue *quantity;

		if (element->type != jbvBinary ||
			!JsonContainerIsObject(element->val.binary.data))
			lines_raise_form(psprintf("Element %u of the array is of type %s.",
									  i, JsonbTypeName(element)));
		sku = getKeyJsonValueFromContainer(element->val.binary.data,
										   "sku", 3, NULL);
		quantity = getKeyJsonValueFromContainer(element->val.binary.data,
												"quantity", 8, NULL);
		if (sku == NULL || sku->type != jbvString || quantity == NULL)
			lines_raise_form(psprintf("Element %u of the array has no %s.", i,
									  sku == NULL || sku->type != jbvString ?
									  "sku that is a string" : "quantity"));
		lines->line[lines->count++] = lines_json_line(sku, quantity);
	}
}

StockLines
lines_arg(FunctionCallInfo fcinfo, int arg)
{
	StockLines	lines = {0};
	Jsonb	   *order;

	args_require(fcinfo, arg, "lines");
	order = PG_GETARG_JSONB_P(arg);
	if (JB_ROOT_IS_SCALAR(order))
		lines_raise_form("It is neither of them.");
	lines_check_count("lines", JB_ROOT_COUNT(order));
	lines.line = palloc0(JB_ROOT_COUNT(order) * sizeof(StockLine));
	if (JB_ROOT_IS_OBJECT(order))
		lines_read_object(&lines, &order->root);
	else
		lines_read_array(&lines, &order->root);
	lines_sum(&lines);
	return lines;
}

/*
 * Quantities stay 0, so a sku that occurs twice cannot cause an overflow.
 */
StockLines
lines_skus_arg(FunctionCallInfo fcinfo, int arg)
{
	StockLines	lines = {0};
	ArrayType  *array;
	Datum	   *elements;
	bool	   *nulls;

	if (PG_ARGISNULL(arg))
		return lines;
	array = PG_GETARG_ARRAYTYPE_P(arg);
	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("skus must be a one-dimensional array")));
	lines_check_count("skus", ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)));
	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT,
					  &elements, &nulls, &lines.count);
	lines.line = palloc0(lines.count * sizeof(StockLine));
	for (int i = 0; i < lines.count; i++)
	{
		if (nulls[i])
			args_raise_null("sku");
		lines.line[i].sku = lines_check_name(DatumGetTextPP(elements[i]), "sku");
	}
	lines_sum(&lines);
	return lines;
}

bool
lines_are_same(const StockLines *a, const StockLines *b)
{
	if (a->count != b->count)
		return false;
	for (int i = 0; i < a->count; i++)
	{
		if (a->line[i].quantity != b->line[i].quantity ||
			lines_compare(&a->line[i], &b->line[i]) != 0)
			return false;
	}
	return true;
}

bool
lines_are_sorted(const StockLines *lines)
{
	for (int i = 1; i < lines->count; i++)
	{
		if (lines_compare(&lines->line[i - 1], &lines->line[i]) > 0)
			return false;
	}
	return true;
}

const StockLine *
lines_find(const StockLines *lines, const text *sku)
{
	StockLine	wanted = {.sku = unconstify(text *, sku)};

	Assert(lines_are_sorted(lines));
	if (lines->count == 0)
		return NULL;
	return bsearch(&wanted, lines->line, lines->count, sizeof(StockLine),
				   lines_compare);
}

int64
lines_quantity(const StockLines *lines, const text *sku)
{
	const StockLine *line = lines_find(lines, sku);

	return line == NULL ? 0 : line->quantity;
}

static TimestampTz
lines_time_after(FunctionCallInfo fcinfo, int arg, TimestampTz from,
				 int setting_s, int max_s, const char *name,
				 const char *max_name)
{
	Interval	by_setting = {.time = setting_s * USECS_PER_SEC};

	return args_time_after(from, PG_ARGISNULL(arg) ? &by_setting :
						   PG_GETARG_INTERVAL_P(arg), max_s, name, max_name);
}

/*
 * idempotency.reservation_ttl_max limits how long callers can hold stock.
 */
TimestampTz
lines_expiry(FunctionCallInfo fcinfo, int ttl_arg, TimestampTz from)
{
	return lines_time_after(fcinfo, ttl_arg, from, settings_reservation_ttl_s,
							settings_reservation_ttl_max_s, "ttl",
							"idempotency.reservation_ttl_max");
}

TimestampTz
lines_wait_end(FunctionCallInfo fcinfo, int wait_ttl_arg, TimestampTz from)
{
	return lines_time_after(fcinfo, wait_ttl_arg, from,
							settings_stock_wait_ttl_s,
							settings_stock_wait_ttl_max_s, "wait_ttl",
							"idempotency.stock_wait_ttl_max");
}

/*
 * SQL: stock_check_sku(sku), raises an error unless the sku is valid.
 */
Datum
stock_check_sku(PG_FUNCTION_ARGS)
{
	errors_hide_frames();
	(void) lines_name_arg(fcinfo, 0, "sku");
	PG_RETURN_VOID();
}

/*
 * SQL: stock_check_reservation(reservation), the same for a reservation.
 */
Datum
stock_check_reservation(PG_FUNCTION_ARGS)
{
	errors_hide_frames();
	(void) lines_name_arg(fcinfo, 0, "reservation");
	PG_RETURN_VOID();
}
