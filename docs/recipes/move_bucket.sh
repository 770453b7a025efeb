#!/bin/bash
#
# move_bucket.sh BUCKET FROM TO
#
# Moves the orders and the request ids of a bucket from one database to another,
# while orders come in. FROM and TO are connections as psql takes them. If it
# stops anywhere, run it again.

set -eu -o pipefail
bucket=$1 from=$2 to=$3
options=(-X -q -A -t -v ON_ERROR_STOP=1 -v bucket="$bucket")

sql() {
	psql "${options[@]}" "$1"
}

die() {
	echo "bucket $bucket: $1" >&2
	exit 1
}

# One run at a time: this session has a lock in the old database. What must not
# be done without the lock is done by it. Each query has one line as its answer.
coproc KEEPER { sql "$from"; }
ask_keeper() {
	echo "$1;" >&"${KEEPER[1]}"
	read -r answer <&"${KEEPER[0]}"
}

ask_keeper "SELECT pg_try_advisory_lock(hashtext('bucket-' || :'bucket'))"
[ "$answer" = t ] || die "another run is moving it"

# If only the old database has a fence, the bucket has moved.
is_moved() {
	ask_keeper "SELECT count(*) FROM idem_fences WHERE scope = 'bucket-' || :'bucket'"
	[ "$answer" = 1 ] || return 1
	[ "$(echo "SELECT count(*) FROM idem_fences WHERE scope = 'bucket-' || :'bucket'" | sql "$to")" = 0 ]
}

if ! is_moved; then
	# From here on, both refuse orders of the bucket, and clients try again.
	echo "SELECT idem_fence('bucket-' || :'bucket')" | sql "$to"
	ask_keeper "SELECT idem_fence('bucket-' || :'bucket')"

	# All that arrives is committed together with the end of the fence. The
	# export comes first, since it waits for orders that are not committed yet.
	{
		echo 'BEGIN; CREATE TEMPORARY TABLE moved (line jsonb); COPY moved FROM STDIN;'
		echo "COPY (SELECT idem_export('bucket-' || :'bucket')) TO STDOUT" | sql "$from"
		echo '\.'
		echo 'DELETE FROM orders WHERE bucket = :bucket; COPY orders FROM STDIN;'
		echo 'COPY (SELECT * FROM orders WHERE bucket = :bucket) TO STDOUT' | sql "$from"
		echo '\.'
		echo "SELECT count(idem_import(line)) FROM moved; SELECT idem_unfence('bucket-' || :'bucket'); COMMIT;"
	} | sql "$to"
fi >/dev/null

is_moved || die "it has not moved; run this again"

# No order is deleted that came to another database.
there=$({
	echo 'CREATE TEMPORARY TABLE old (id uuid); COPY old FROM STDIN;'
	echo 'COPY (SELECT id FROM orders WHERE bucket = :bucket) TO STDOUT' | sql "$from"
	echo '\.'
	echo 'SELECT count(*) = 0 OR count(orders.id) > 0 FROM old LEFT JOIN orders USING (id)'
} | sql "$to")
[ "$there" = t ] || die "it has moved, but to another database"
ask_keeper 'WITH deleted AS (DELETE FROM orders WHERE bucket = :bucket RETURNING id) SELECT count(*) FROM deleted'
