/*
 * row.c
 *		Reads values from rows of the stock tables, and checks them.
 *
 * A row is input: a restore, a replica or an owner can write rows that the
 * functions of stock never write, and constraints may have been dropped or not
 * validated.  So no value of a row is used before it was checked here.  An
 * error concerns one reservation or item; workers continue with the others.
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "base/compat.h"
#include "stock/row.h"
#include "stock/stock.h"

void
row_raise(TupleTableSlot *row, int column, const char *problem)
{
	TupleDesc	desc = row->tts_tupleDescriptor;
	Form_pg_attribute attribute = TupleDescAttr(desc, column);
	char	   *table = get_rel_name(row->tts_tableOid);

	ereport(ERROR,
			(errcode(ERRCODE_CHECK_VIOLATION),
			 errmsg("a row of table \"%s\" cannot be used", table ? table : ""),
			 errdetail("Its \"%s\" %s.", NameStr(attribute->attname), problem),
			 errhint("It was not written by the functions of stock. Correct or delete it.")));
}

void
row_raise_range(const text *sku)
{
	ereport(ERROR,
			(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
			 errmsg("stock of \"%s\" is out of range", text_to_cstring(sku)),
			 errhint("stock_verify() says what root record and log add up to.")));
}

Datum
row_value(TupleTableSlot *row, int column)
{
	bool		isnull;
	Datum		value = slot_getattr(row, column + 1, &isnull);

	if (isnull)
		row_raise(row, column, "is null");
	return value;
}

text *
row_name(TupleTableSlot *row, int column)
{
	text	   *name = DatumGetTextPCopy(row_value(row, column));
	int			length = VARSIZE_ANY_EXHDR(name);

	if (length == 0)
		row_raise(row, column, "is empty");
	if (length > STOCK_NAME_MAX)
		row_raise(row, column, "is too long");
	return name;
}

/*
 * The smallest bigint is refused because it cannot be negated.
 */
int64
row_quantity(TupleTableSlot *row, int column, bool may_be_negative)
{
	int64		quantity = DatumGetInt64(row_value(row, column));

	if (quantity == 0 || quantity == PG_INT64_MIN ||
		(quantity < 0 && !may_be_negative))
		row_raise(row, column, "is out of range");
	return quantity;
}

int
row_line(TupleTableSlot *row, int column)
{
	int			line = DatumGetInt16(row_value(row, column));

	if (line < 0 || line >= STOCK_LINES_MAX)
		row_raise(row, column, "is out of range");
	return line;
}

/*
 * Rows from before version 1.0.0 do not have the number.
 */
int
row_order(TupleTableSlot *row, int column, int line)
{
	bool		isnull;
	int			lines = DatumGetInt16(slot_getattr(row, column + 1, &isnull));

	if (isnull)
		return 0;
	if (lines <= line || lines > STOCK_LINES_MAX)
		row_raise(row, column, "is out of range");
	return lines;
}
