/*
 * Stock: a filter in shared memory knows which names of reservations are new.
 *
 * One name, sessions that reserve it, one that settles a reservation, external
 * DML, a sweeper that builds the filter, one that clears it, and a crash.  The
 * name is reserved once, whoever is told that it is new.
 *
 * The filter has a bit for the name.  Who writes the first row of a name sets
 * the bit and writes the row with a lock in shared mode, the stripe of the name.
 *
 * NOT_HELD       the row of a new name is written after the lock was released
 * NO_BARRIER     who finds the bit set does not wait for the writer of the row
 * PEEK_TRUSTED   the bit is only looked at, and not set and tested at once
 * LOOKED_AFTER   a name that may be known sets its bit after its row
 * LOOKED_FREE    its row is written without the lock
 * CLEARED_AWAY   its row is written although its bit may have been cleared
 * CLEAR_BEFORE   the filter is cleared while it still counts as complete
 * CLEAR_ONCE     and no writers are waited for when it is clear
 * BUILD_CLEARED  a build counts although the filter was cleared meanwhile
 * BUILD_EARLY    a build begins while the filter is being cleared
 * SCAN_COMMITTED the build sees only holds that are committed
 * SCAN_LOG_FIRST the build reads the log before the holds
 * BUILD_FREE     the build does not keep out external DML
 * DML_UNTOLD     external DML leaves the filter as it is
 * CRASH_KEEPS    a restarted server believes that its empty filter is complete
 */

#ifndef SESSIONS
#define SESSIONS 2
#endif
#ifndef CLEARS
#define CLEARS 1
#endif

mtype = { NONE, OPEN, DONE };

/* The rows: of holds, the last is that of external DML. */
mtype hold[SESSIONS + 1] = NONE;
bit physical[SESSIONS + 1];		/* also a row that nobody can see */
mtype closing = NONE;			/* the row that settles in the log */
byte reserved = 0;				/* committed reservations of the name */

/* The filter.  While it is cleared, the generation is odd. */
bit filter;
byte generation = 0;
byte complete = 255;			/* the generation that is complete */

/* The stripe; and the lock on the log, which external DML takes alone. */
byte shared = 0;
bit exclusive = 0;
byte changers = 0;
bit dml = 0;

#define COMPLETE        (complete == generation)
#define LOCK_SHARED     atomic { !exclusive -> shared++ }
#define UNLOCK_SHARED   shared--
#define LOCK_ALONE      atomic { !exclusive && shared == 0 -> exclusive = 1 }
#define UNLOCK_ALONE    exclusive = 0

#define SOME(state) (hold[0] == state || hold[1] == state || \
	hold[SESSIONS - 1] == state || hold[SESSIONS] == state)

inline set_bit(was_set)
{
#ifdef PEEK_TRUSTED
	was_set = 0;
#else
	was_set = filter || !COMPLETE;
#endif
	filter = 1
}

inline reserve(me)
{
	bit known;
	byte seen;

	atomic { !dml -> changers++ }
	known = filter || !COMPLETE;
	if
	:: known -> goto LOOK
	:: else
	fi;
	LOCK_SHARED;
	atomic { set_bit(known) };
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
	/* No other session is now between the bit of the name and its row. */
#ifdef NO_BARRIER
	atomic { set_bit(_); seen = generation };
#else
	LOCK_ALONE;
#ifndef LOOKED_AFTER
	atomic { set_bit(_); seen = generation };
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
#if !defined(CLEARED_AWAY) && !defined(LOOKED_AFTER)
	if :: seen != generation -> UNLOCK_SHARED; goto LOOK :: else fi;
#endif
#endif
	/* The primary key refuses a second row. */
	atomic {
		known = SOME(OPEN) || SOME(DONE);
		if :: !known -> hold[me] = OPEN; physical[me] = 1 :: else fi
	};
#ifdef LOOKED_AFTER
	atomic { set_bit(_) };
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
	complete = 255;
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
	byte seen;
	byte times = 0;

AGAIN:
	found = 0;
#ifndef BUILD_FREE
	atomic { !dml -> changers++ };
#endif
	seen = generation;
#ifndef BUILD_EARLY
	if :: seen % 2 == 1 -> goto ENDED :: else fi;
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
	if :: found -> filter = 1 :: else fi;
#ifdef BUILD_CLEARED
	complete = generation;
#else
	complete = seen;
#endif
ENDED:
#ifndef BUILD_FREE
	changers--;
#endif
	times++;
	if :: times < 2 -> goto AGAIN :: else fi
}

/* The sweeper of any database, since all of them share the filter. */
proctype Clearer()
{
	byte times = 0;

	do
	:: times < CLEARS ->
#ifdef CLEAR_BEFORE
		filter = 0;
		LOCK_ALONE;
		generation++;
		UNLOCK_ALONE;
#else
		LOCK_ALONE;
		generation++;
		UNLOCK_ALONE;
		filter = 0;
#endif
#ifdef CLEAR_ONCE
		generation++;
#else
		LOCK_ALONE;
		generation++;
		UNLOCK_ALONE;
#endif
		times++
	:: else -> break
	od
}

/* A crash ends all transactions; one that has written rolls back. */
proctype Restart()
{
	atomic { changers == 0 && !dml && shared == 0 && !exclusive && generation % 2 == 0 ->
		filter = 0;
#ifdef CRASH_KEEPS
		complete = generation
#else
		complete = 255
#endif
	}
}

init
{
	byte i;

	atomic {
		if :: filter = 0 :: filter = 1 fi;
		if :: complete = 255 :: complete = generation fi;
		for (i : 0 .. SESSIONS - 1) { run Session(i) };
		run Settler();
		run Outsider();
		run Builder();
		run Clearer();
		run Restart()
	};
	_nr_pr == 1 || timeout;
	assert(reserved <= 1)
}
