// Takes an order once for each key, with database/sql and lib/pq or pgx: lines
// has the quantities as JSON, such as {"cup": 2, "plate": 1}. The steps are
// explained in docs/drivers.md, "The examples".

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

func checkout(ctx context.Context, db *sql.DB, key, lines string) (string, error) {
	var outcome, response string
	var token int64
	err := db.QueryRowContext(ctx, `SELECT outcome, coalesce(token, 0), coalesce(response, '{}')
		FROM idem_claim($1, $2, $3, $4)`, key, "checkout", "40 s", lines).Scan(&outcome, &token, &response)
	if err != nil || outcome == "completed" {
		return response, err
	}
	if outcome != "claimed" {
		return "", errors.New(outcome)
	}

	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return "", err
	}
	defer tx.Rollback()
	err = tx.QueryRowContext(ctx, `SELECT outcome FROM stock_reserve_many($1, $2)`, lines, key).Scan(&outcome)
	if err == nil && outcome == "reserved" {
		_, err = tx.ExecContext(ctx, `SELECT outbox_enqueue($1, $2, $3)`, "order.placed", lines, key)
	}
	answer := fmt.Sprintf(`{"outcome": %q}`, outcome)
	if err == nil {
		_, err = tx.ExecContext(ctx, `SELECT idem_complete($1, $2, $3, $4)`, key, token, answer, "checkout")
	}
	if err != nil {
		return "", err
	}
	return answer, tx.Commit()
}
