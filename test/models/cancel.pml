/*
 * Outbox: an event that waits for its time is cancelled.
 *
 * One event, one session that cancels it, one reader (a relay, or
 * outbox_fetch), the clock and the sweeper.  At the end, the event was
 * sent if and only if no committed transaction was told that it is cancelled.
 *
 * LOOK_FIRST    the session looks at the clock before it inserts its row
 * PROBE_FIRST   the reader looks for the row before it looks at the clock
 * COMMITTED     the reader does not see the row of an open transaction
 * LATE_AT_ONCE  an event that is read from the log when it is due is sent
 *               without a look for the row
 * FORGET_EARLY  the row is forgotten while there is a copy of the event
 * FORGET_YOUNG  the row is forgotten while a snapshot is older than it
 */

#define DUE 1

mtype = { NONE, OPEN, DONE };

byte now = 0;
mtype row = NONE;			/* of the event in outbox_cancelled */
mtype copy = NONE;			/* of the event in outbox_delivery */
bit read = 0;				/* the reader has passed the event in the log */
bit told = 0;				/* a committed transaction was told "cancelled" */
bit ended = 0;				/* the session that cancels has ended */
bit looking = 0;			/* a statement sees the copy, and has not looked for the row yet */
bit sent = 0;
bit gone = 0;				/* the copy was dropped, or there will be none */

#ifdef COMMITTED
#define SEEN (row == DONE)
#else
#define SEEN (row != NONE)
#endif

proctype Clock()
{
	now < DUE -> now++
}

proctype Session()
{
	bit in_time;

#ifdef LOOK_FIRST
	in_time = (now < DUE);
	row = OPEN;
#else
	row = OPEN;
	in_time = (now < DUE);
#endif
	if
	:: !in_time -> atomic { row = NONE; ended = 1; goto END }
	:: else
	fi;
	bit deletes = (copy == DONE);
	if
	:: atomic { row = DONE; told = 1; ended = 1;
			if :: deletes -> copy = NONE; gone = 1 :: else fi }
	:: atomic { row = NONE; ended = 1 }
	fi;
END:	skip
}

proctype Reader()
{
	bit due;
	bit found;
	mtype seen;

	/* From the log. */
#ifdef PROBE_FIRST
	found = SEEN;
	due = (now >= DUE);
#else
	due = (now >= DUE);
	found = SEEN;
#endif
#ifdef LATE_AT_ONCE
	found = 0;
#endif
	if
	:: due && !found -> atomic { sent = 1; read = 1; gone = 1; goto END }
	:: else
	fi;
	/* The copy is made unless the statement sees a committed row. */
	if
	:: atomic { row == DONE -> read = 1; gone = 1; goto END }
	:: atomic { row != DONE -> copy = OPEN }
	fi;
	atomic { copy = DONE; read = 1 };

	/* The copy, when it is due.  A row that is open is looked at again. */
AGAIN:	if
	:: atomic { copy == NONE -> goto END }
	:: atomic { copy == DONE && now >= DUE -> looking = 1 }
	fi;
	atomic { seen = row; looking = 0 };
	if
#ifdef COMMITTED
	:: seen != DONE -> atomic { sent = 1; copy = NONE; gone = 1 }
#else
	:: seen == NONE -> atomic { sent = 1; copy = NONE; gone = 1 }
	:: seen == OPEN -> goto AGAIN
#endif
	:: seen == DONE -> atomic { copy = NONE; gone = 1 }
	fi;
END:	skip
}

/* The log was read and is truncated; the row is forgotten when nothing is left. */
proctype Sweeper()
{
	read -> skip;
#ifdef FORGET_EARLY
endA:	atomic { row == DONE -> row = NONE }
#elif defined(FORGET_YOUNG)
endB:	atomic { row == DONE && copy == NONE -> row = NONE }
#else
endC:	atomic { row == DONE && copy == NONE && !looking -> row = NONE }
#endif
}

init
{
	atomic { run Clock(); run Session(); run Reader(); run Sweeper() }
	gone && ended;
	assert(sent == !told)
}
