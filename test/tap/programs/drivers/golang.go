/*
 * golang.go
 *		Calls the functions by database/sql as an application does, and prints
 *		a line for each step.  libpq.go and pgx.go have what differs between the
 *		drivers.  t/drivers.pl has the expected lines, and builds this with one of
 *		them and with the example of docs/drivers.md.
 */
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

const scope = "drivers"
const answer = `{"order": 17, "note": "Grüße, 漢字"}`

type line struct {
	Sku, State                 string
	Wanted, Available, Missing int64
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// Queries by positional parameters, and scans the columns of the one row.
func row(db *sql.DB, query string, values []interface{}, columns ...interface{}) {
	check(db.QueryRow(query, values...).Scan(columns...))
}

func values(values ...interface{}) []interface{} {
	return values
}

// Describes the lines of a JSON array.
func describe(array []byte, format func(line) string) string {
	var lines []line
	var list []string

	check(json.Unmarshal(array, &lines))
	for _, line := range lines {
		list = append(list, format(line))
	}
	return strings.Join(list, ", ")
}

func claim(db *sql.DB, request string) (outcome string, token, attempt sql.NullInt64, response []byte) {
	row(db, "SELECT outcome, token, attempt, response FROM idem_claim($1, $2, $3, $4)",
		values("key", scope, "40 s", request), &outcome, &token, &attempt, &response)
	return
}

func claims(db *sql.DB) {
	outcome, token, attempt, _ := claim(db, "request")
	fmt.Println("claim:", outcome, attempt.Int64)
	outcome, _, _, _ = claim(db, "request")
	fmt.Println("claim again:", outcome)
	outcome, _, _, _ = claim(db, "other")
	fmt.Println("claim for another request:", outcome)

	_, err := db.Exec("SELECT idem_complete($1, $2, $3, $4)", "key", token, answer, scope)
	check(err)
	outcome, _, _, response := claim(db, "request")
	var saved struct {
		Order int
		Note  string
	}
	check(json.Unmarshal(response, &saved))
	fmt.Println("replay:", outcome, saved.Order, saved.Note)

	rows, err := db.Query("SELECT key, outcome FROM idem_claim_many($1, $2)", array("key", "new"), scope)
	check(err)
	var many []string
	for rows.Next() {
		var key string
		check(rows.Scan(&key, &outcome))
		many = append(many, key+" "+outcome)
	}
	check(rows.Err())
	fmt.Println("claim many:", strings.Join(many, ", "))
}

func events(db *sql.DB) {
	var position int64
	later := time.Date(2040, 1, 2, 3, 4, 5, 0, time.UTC)

	row(db, "SELECT outbox_enqueue($1, $2, $3, $4, $5, $6)",
		values("order.placed", answer, "ann", "order", `{"X-Shop": "hats"}`, later), &position)
	fmt.Println("enqueue:", position > 0)
}

func reservations(db *sql.DB) {
	var outcome, state string
	var lines []byte

	row(db, "SELECT outcome FROM stock_reserve($1, $2, $3, $4, $5)",
		values("hat", 2, "one", interval(2*time.Hour), "ann"), &outcome)
	fmt.Println("reserve:", outcome)
	row(db, "SELECT outcome FROM stock_reserve($1, $2, $3)", values("hat", 1, "two"), &outcome)
	fmt.Println("reserve by three parameters:", outcome)
	row(db, "SELECT outcome FROM stock_reserve_many($1, $2)", values(object(map[string]int{"hat": 1, "scarf": 2}), "many"), &outcome)
	fmt.Println("reserve many:", outcome)

	row(db, "SELECT outcome, shortages FROM stock_reserve_many($1, $2)",
		values([]byte(`[{"sku": "hat", "quantity": 100}, {"sku": "scarf", "quantity": 1}]`), "too many"), &outcome, &lines)
	fmt.Println("shortage:", outcome, describe(lines, func(l line) string {
		return fmt.Sprint(l.Sku, " ", l.Wanted, " ", l.Available, " ", l.Missing)
	}))

	row(db, "SELECT outcome FROM stock_confirm($1, $2)", values("many", array("hat")), &outcome)
	fmt.Println("confirm:", outcome)
	row(db, "SELECT state, lines FROM stock_reservation_status($1)", values("many"), &state, &lines)
	fmt.Printf("status: %s, %s\n", state, describe(lines, func(l line) string { return l.Sku + " " + l.State }))
}

func lostLease(db *sql.DB) {
	var token, newer, available, reserved int64
	query := "SELECT token FROM idem_claim($1, $2, $3)"

	row(db, query, values("lost", scope, "1 ms"), &token)
	time.Sleep(50 * time.Millisecond)
	row(db, query, values("lost", scope, "1 ms"), &newer)

	tx, err := db.Begin()
	check(err)
	_, err = tx.Exec("SELECT stock_reserve($1, $2, $3)", "hat", 1, "lost")
	check(err)
	_, err = tx.Exec("SELECT idem_complete($1, $2, $3, $4)", "lost", token, answer, scope)
	fmt.Println("lost lease:", sqlState(err))
	check(tx.Rollback())
	row(db, "SELECT available, reserved FROM stock_level($1)", values("hat"), &available, &reserved)
	fmt.Println("level:", available, reserved)
}

func outcomeOf(db *sql.DB, key, lines string) string {
	var saved struct{ Outcome string }

	response, err := checkout(context.Background(), db, key, lines)
	if err != nil {
		return err.Error()
	}
	check(json.Unmarshal([]byte(response), &saved))
	return saved.Outcome
}

func example(db *sql.DB) {
	fmt.Println("checkout:", outcomeOf(db, "order-1", `{"cup": 2, "plate": 2}`))
	fmt.Println("checkout again:", outcomeOf(db, "order-1", `{"cup": 2, "plate": 2}`))
	fmt.Println("checkout of another order:", outcomeOf(db, "order-1", `{"cup": 3}`))
	fmt.Println("checkout of too much:", outcomeOf(db, "order-2", `{"cup": 20}`))
}

// BEGIN and what follows it have to go over one connection.
func executeAll(db *sql.DB, file string) {
	statements, err := os.ReadFile(file)
	check(err)
	db.SetMaxOpenConns(1)
	for _, statement := range strings.Split(strings.TrimSpace(string(statements)), "\n") {
		_, err := db.Exec(statement)
		check(err)
	}
	fmt.Println("executed")
}

func main() {
	db, err := sql.Open(driver, "sslmode=disable")
	check(err)
	if len(os.Args) > 1 {
		executeAll(db, os.Args[1])
		return
	}
	claims(db)
	events(db)
	reservations(db)
	lostLease(db)
	example(db)
}
