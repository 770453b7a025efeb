/*
 * libpq.go
 *		What golang.go needs of lib/pq.
 */
package main

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/lib/pq"
)

const driver = "postgres"

func array(values ...string) interface{} { return pq.Array(values) }

func interval(duration time.Duration) interface{} { return duration.String() }

func object(value map[string]int) interface{} {
	text, err := json.Marshal(value)
	check(err)
	return string(text)
}

func sqlState(err error) string {
	var failed *pq.Error
	if !errors.As(err, &failed) {
		return ""
	}
	return string(failed.Code)
}
