#!/bin/sh
#
# move_bucket.sh BUCKET FROM TO
#
# Moves the orders and the request ids of a bucket from one database to another,
# while orders come in. FROM and TO are connections as psql takes them. If it
# stops anywhere, run it again.

set -eu
bucket=$1 from=$2 to=$3

sql() {
	psql -X -q -A -t -v ON_ERROR_STOP=1 -v bucket="$bucket" "$1"
}

has_fence() {
	echo "SELECT count(*) FROM idem_fences WHERE scope = 'bucket-' || :'bucket'" | sql "$1"
}

# If only the old database has a fence, the bucket has moved.
is_moved() {
	[ "$(has_fence "$from")$(has_fence "$to")" = 10 ]
}

if ! is_moved; then
	# From here on, both refuse orders of the bucket, and clients try again.
	echo "SELECT idem_fence('bucket-' || :'bucket')" | sql "$to"
	echo "SELECT idem_fence('bucket-' || :'bucket')" | sql "$from"

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

is_moved || { echo "bucket $bucket has not moved; run this again" >&2; exit 1; }
echo 'DELETE FROM orders WHERE bucket = :bucket' | sql "$from"
