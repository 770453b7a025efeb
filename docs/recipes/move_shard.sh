#!/bin/sh
#
# move_shard.sh SHARD FROM_HOST FROM_PORT TO_HOST TO_PORT
#
# Moves a shard of Citus, and the request ids of its orders, from one worker to
# another, while orders come in. The environment says where the coordinator is,
# as for psql: PGHOST, PGPORT, PGUSER, PGDATABASE. If it stops anywhere, run it
# again.

set -eu
shard=$1 from_host=$2 from_port=$3 to_host=$4 to_port=$5

sql() {
	psql -X -q -A -t -v ON_ERROR_STOP=1 -v shard="$shard" -v from_host="$from_host" -v from_port="$from_port" \
		-v to_host="$to_host" -v to_port="$to_port" "$@"
}

from() {
	sql -h "$from_host" -p "$from_port"
}

to() {
	sql -h "$to_host" -p "$to_port"
}

has_fence="SELECT count(*) FROM idem_fences WHERE scope = 'shard-' || :'shard'"
fence="SELECT idem_fence('shard-' || :'shard')"

# If only the old node has a fence, the shard has moved.
is_moved() {
	[ "$(echo "$has_fence" | from)$(echo "$has_fence" | to)" = 10 ]
}

if ! is_moved; then
	# From here on, both refuse orders of the shard, and clients try again.
	echo "$fence" | to
	echo "$fence" | from

	echo "SELECT citus_move_shard_placement(:shard, :'from_host', :from_port, :'to_host', :to_port, 'block_writes')
		WHERE EXISTS (SELECT FROM citus_shards
			WHERE shardid = :shard AND nodename = :'from_host' AND nodeport = :from_port)" | sql

	{
		echo 'BEGIN; CREATE TEMPORARY TABLE moved (line jsonb); COPY moved FROM STDIN;'
		echo "COPY (SELECT idem_export('shard-' || :'shard')) TO STDOUT" | from
		echo '\.'
		echo "SELECT count(idem_import(line)) FROM moved; SELECT idem_unfence('shard-' || :'shard'); COMMIT;"
	} | to
fi >/dev/null

is_moved || { echo "shard $shard has not moved; run this again" >&2; exit 1; }
