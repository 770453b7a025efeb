# sql-exporter.awk: makes the configuration of prometheus-sql-exporter from the
# queries in postgres-exporter.yml.
#
# That exporter knows no histograms: a bucket is a row of a second query.

function print_query(name, labels, values, query) {
	print "      - name: " name
	print "        allow_zero_rows: true"
	print "        labels: [" labels "]"
	print "        values: [" values "]"
	print "        query: |"
	print "          " query
}

function print_queries() {
	if (name == "")
		return
	print_query(name, labels, values, query)
	if (histogram != "")
		print_query(name "_" histogram, labels ", le", "bucket", \
			"SELECT " labels ", CASE b.le WHEN 'Infinity' THEN '+Inf' ELSE b.le::text END AS le, b.bucket" LINE \
			"FROM (" LINE "  " query ") q," LINE \
			"  unnest(" histogram ", " histogram "_bucket) AS b(le, bucket)")
}

function add(list, item) {
	return list (list == "" ? "" : ", ") item
}

BEGIN {
	LINE = "\n          "
	print "# Configuration of prometheus-sql-exporter, made of postgres-exporter.yml by"
	print "# sql-exporter.awk: edit that file. The databases are in the environment variable"
	print "# IDEMPOTENCY_CONNECTIONS, and docs/operations/prometheus.md says how to set this up."
	print ""
	print "jobs:"
	print "  - name: idempotency"
	print "    interval: 1m"
	print "    connections: {{IDEMPOTENCY_CONNECTIONS}}"
	print "    queries:"
}

/^[a-z]/ {
	print_queries()
	name = substr($1, 1, length($1) - 1)
	labels = values = query = histogram = ""
}

/^    [^-]/ { query = query (query == "" ? "" : LINE) substr($0, 5) }

/^    - / {
	column = substr($2, 1, length($2) - 1)
	if (/usage: LABEL/)
		labels = add(labels, column)
	else if (/usage: HISTOGRAM/) {
		histogram = column
		values = add(values, column "_sum, " column "_count")
	} else
		values = add(values, column)
}

END { print_queries() }
