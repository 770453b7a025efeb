/*
 * Stock: a filter in shared memory knows which names of reservations are new.
 *
 * One name, sessions that reserve it, one that settles a reservation, external
 * DML, the sweeper that builds the filter, and a crash.  The name is reserved
 * once, whoever is told that it is new.
 *
 * The filter has a bit for the name in the area that is used, and in the area
 * that is built.  Who writes the first row of a name sets the bits and writes
 * the row with a lock in shared mode, which is the stripe of the name.
 *
 * NOT_HELD       the row of a new name is written after the lock was released
 * NO_BARRIER     who finds the bit set does not wait for the writer of the row
 * PEEK_TRUSTED   the bit is only looked at, and not set and tested at once
 * LOOKED_AFTER   a name that may be known sets its bits after its row
 * LOOKED_FREE    its row is written without the lock
 * AREA_OF_LOOK   its row is written although an area was published or switched
 *                since its bits were set
 * SWITCH_FREE    the area that is built is published without the lock
 * SCAN_COMMITTED the build sees only holds that are committed
 * SCAN_LOG_FIRST the build reads the log before the holds
 * BUILD_FREE     the build does not keep out external DML
 * DML_UNTOLD     external DML leaves the filter as it is
 * CRASH_KEEPS    a restarted server believes that its empty filter is complete
 */

#ifndef SESSIONS
#define SESSIONS 2
#endif

mtype = { NONE, OPEN, DONE };

/* The rows: of holds, the last is that of external DML. */
mtype hold[SESSIONS + 1] = NONE;
bit physical[SESSIONS + 1];		/* also a row that nobody can see */
mtype closing = NONE;			/* the row that settles in the log */
byte reserved = 0;				/* committed reservations of the name */

/* The filter. */
bit used, built;				/* the bit of the name in both areas */
bit building = 0;				/* writers set the bit in both */
bit complete = 0;
byte generation = 0;			/* of the areas */

/* The stripe; and the lock on the log, which external DML takes alone. */
byte shared = 0;
bit exclusive = 0;
byte changers = 0;
bit dml = 0;

#define LOCK_SHARED     atomic { !exclusive -> shared++ }
#define UNLOCK_SHARED   shared--
#define LOCK_ALONE      atomic { !exclusive && shared == 0 -> exclusive = 1 }
#define UNLOCK_ALONE    exclusive = 0

#define SOME(state) (hold[0] == state || hold[1] == state || \
	hold[SESSIONS - 1] == state || hold[SESSIONS] == state)

inline set_bits(was_set)
{
#ifdef PEEK_TRUSTED
	was_set = 0;
#else
	was_set = used || !complete;
#endif
	used = 1;
	if :: building -> built = 1 :: else fi
}

inline reserve(me)
{
	bit known;
	byte seen;

	atomic { !dml -> changers++ }
	known = used || !complete;
	if
	:: known -> goto LOOK
	:: else
	fi;
	LOCK_SHARED;
#ifdef PEEK_TRUSTED
	set_bits(known);
#else
	atomic { set_bits(known) };
#endif
	if
	:: known -> UNLOCK_SHARED; goto LOOK
	:: else
	fi;
#ifdef NOT_HELD
	UNLOCK_SHARED;
	atomic { hold[me] = OPEN; physical[me] = 1 };
#else
	atomic { hold[me] = OPEN; physical[me] = 1 };
	UNLOCK_SHARED;
#endif
	goto OWN;

LOOK:
	/* No other session is now between the bits of the name and its row. */
#ifdef NO_BARRIER
	atomic { set_bits(_); seen = generation };
#else
	LOCK_ALONE;
#ifndef LOOKED_AFTER
	atomic { set_bits(_); seen = generation };
#endif
	UNLOCK_ALONE;
#endif
	/* Waits for open transactions with the name, and then looks. */
	atomic { !SOME(OPEN) && closing != OPEN ->
		if :: SOME(DONE) -> goto KNOWN :: else fi };
	if :: closing == DONE -> goto KNOWN :: else fi;
#ifdef LOOKED_FREE
	if :: seen != generation -> goto LOOK :: else fi;
#else
	LOCK_SHARED;
#if !defined(AREA_OF_LOOK) && !defined(LOOKED_AFTER)
	if :: seen != generation -> UNLOCK_SHARED; goto LOOK :: else fi;
#endif
#endif
	/* The primary key refuses a second row. */
	atomic {
		known = SOME(OPEN) || SOME(DONE);
		if :: !known -> hold[me] = OPEN; physical[me] = 1 :: else fi
	};
#ifdef LOOKED_AFTER
	atomic { set_bits(_) };
#endif
#ifndef LOOKED_FREE
	UNLOCK_SHARED;
#endif
	if :: known -> goto LOOK :: else fi;
	/* A row that was settled meanwhile is in the log. */
	if :: closing != NONE -> hold[me] = NONE; goto LOOK :: else fi;
OWN:
	if
	:: atomic { hold[me] = DONE; reserved++ }
	:: hold[me] = NONE
	fi;
KNOWN:
	changers--
}

proctype Session(byte me)
{
	reserve(me)
}

/* Settles a reservation, in two steps that commit at once; or rolls back. */
proctype Settler()
{
	byte row;

end:	atomic { !dml && SOME(DONE) && closing == NONE ->
		changers++;
		if
		:: hold[0] == DONE -> row = 0
		:: hold[1] == DONE -> row = 1
		:: hold[SESSIONS - 1] == DONE -> row = SESSIONS - 1
		:: hold[SESSIONS] == DONE -> row = SESSIONS
		fi;
		hold[row] = OPEN; closing = OPEN };
	if
	:: atomic { hold[row] = NONE; physical[row] = 0; closing = DONE }
	:: atomic { hold[row] = DONE; closing = NONE }
	fi;
	changers--
}

/* A row of a reservation that a restore, for example, has brought. */
proctype Outsider()
{
	atomic { changers == 0 && !dml -> dml = 1 };
#ifndef DML_UNTOLD
	complete = 0;
#endif
	if
	:: atomic { !SOME(DONE) && closing == NONE ->
			hold[SESSIONS] = OPEN; physical[SESSIONS] = 1 };
		atomic { hold[SESSIONS] = DONE; reserved++ }
	:: else
	fi;
	dml = 0
}

proctype Builder()
{
	bit found;
	byte times = 0;

AGAIN:
	found = 0;

#ifndef BUILD_FREE
	atomic { !dml -> changers++ };
#endif
#ifdef SWITCH_FREE
	atomic { building = 1; built = 0; generation++ };
#else
	LOCK_ALONE;
	atomic { building = 1; built = 0; generation++ };
	UNLOCK_ALONE;
#endif
#ifdef SCAN_LOG_FIRST
	if :: closing == DONE -> found = 1 :: else fi;
#endif
#ifdef SCAN_COMMITTED
	if :: SOME(DONE) -> found = 1 :: else fi;
#else
	if :: physical[0] || physical[1] || physical[SESSIONS - 1] || physical[SESSIONS] -> found = 1 :: else fi;
#endif
#ifndef SCAN_LOG_FIRST
	if :: closing == DONE -> found = 1 :: else fi;
#endif
	if :: found -> built = 1 :: else fi;
	LOCK_ALONE;
	atomic { used = built; building = 0; complete = 1; generation++ };
	UNLOCK_ALONE;
#ifndef BUILD_FREE
	changers--;
#endif
	times++;
	if :: times < 2 -> goto AGAIN :: else fi
}

/* A crash ends all transactions; one that has written rolls back. */
proctype Restart()
{
	atomic { changers == 0 && !dml && shared == 0 && !exclusive ->
		used = 0;
		building = 0;
#ifndef CRASH_KEEPS
		complete = 0
#endif
	}
}

init
{
	byte i;

	atomic {
		if :: used = 0 :: used = 1 fi;
		for (i : 0 .. SESSIONS - 1) { run Session(i) };
		run Settler();
		run Outsider();
		run Builder();
		run Restart()
	};
	_nr_pr == 1 || timeout;
	assert(reserved <= 1)
}
