/*
 * pgx.go
 *		What golang.go needs of pgx, which takes values as they are.
 */
package main

import (
	"errors"
	"time"

	"github.com/jackc/pgconn"
	_ "github.com/jackc/pgx/v4/stdlib"
)

const driver = "pgx"

func array(values ...string) interface{} { return values }

func interval(duration time.Duration) interface{} { return duration }

func object(value map[string]int) interface{} { return value }

func sqlState(err error) string {
	var failed *pgconn.PgError
	if !errors.As(err, &failed) {
		return ""
	}
	return failed.Code
}
