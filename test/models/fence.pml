/*
 * Fences: one key of a scope that moves from database 0 to database 1.
 *
 * Clients try the key in any of the two databases, by old or new knowledge of
 * where the scope is; nobody knows of database 1 before a mover has set a fence
 * there.  A try finds the key done, in progress, or free; then
 * it claims the key, and does the work, gives up, or leaves a lease, which may be
 * over at any moment.  An owner completes the key in any of the two.  Movers
 * take the steps of fence.c, stop before any of them, and another begins again,
 * or moves the scope back.
 *
 * A commit is visible before it is known to the sessions, and locks are released
 * last.  A session learns that there are fences when it locks the ring.
 *
 * Checked: the work is done once; and a whole move leaves a fence in the old
 * database, and none in the new one.
 *
 * Bounds: TRIES0, TRIES1 of each client, LEASES=0 without leases, MOVERS: 2, or
 * 1, BACK=1: the second one moves the scope back.
 *
 * Wrong variants:
 *   NO_WAIT_KEYS     the export does not wait for those that have a segment
 *   NO_WAIT_RING     nor for those that look for the key
 *   KEYS_FIRST       it waits for them in the other order
 *   NO_WAIT_FENCE    nor for the end of the fence's own commit
 *   ONE_FENCE        only the old database has a fence
 *   UNFENCE_FIRST    the new one's fence ends before the keys are there
 *   UNFENCE_ANY      somebody else ends it during an import
 *   FINISH_ANYWHERE  an owner completes a key without a look for fences
 *   CHECK_FIRST      a claimer looks for fences before it locks the ring
 *   IMPORT_ALL       imported keys replace newer ones
 *   TIES_STAY        they do not replace the same claim, in progress
 *   TOKENS_APART     tokens are not advanced by an import
 */
#ifndef TRIES0
#define TRIES0 2
#endif
#ifndef TRIES1
#define TRIES1 1
#endif
#ifndef LEASES
#define LEASES 0
#endif
#ifndef MOVERS
#define MOVERS 2
#endif
#ifndef BACK
#define BACK 0
#endif
#ifdef UNFENCE_ANY
#define LAST 2
#else
#define LAST 1
#endif
#define NC 2
#define B(p) (1<<(p))
#define ALL 3
#define MOVER(m) (NC + (m))

#define NONE 0
#define PROGRESS 1
#define DONE 2
#define FREE 3

/* Of each database: the row of the key, and who is writing it. */
byte state[2], token[2], writer[2], tokens[2];
byte visible;			/* has a fence, as committed: bits of databases */
byte sharing[2];		/* movers that import, and lock the fence's row */
/* Locks: bits of clients and movers. */
byte ring[2], keys[2], fences[2];
/* What a session knows. */
byte news[2];			/* not received yet */
byte loaded[2], any[2];
/* For the assertions. */
byte effects;
byte stopped;			/* movers */
byte routed;			/* databases that clients know */

inline lock_ring(d)
{
	atomic {
		ring[d] = ring[d] | B(me);
		if
		:: news[d] & B(me) -> news[d] = news[d] & ~B(me);
			loaded[d] = loaded[d] & ~B(me)
		:: else
		fi
	}
}

inline look_for_fence(d)
{
	if
	:: loaded[d] & B(me)
	:: else -> atomic {
			loaded[d] = loaded[d] | B(me);
			if
			:: visible & B(d) -> any[d] = any[d] | B(me)
			:: else -> any[d] = any[d] & ~B(me)
			fi
		}
	fi;
	refused = (any[d] & B(me)) && (visible & B(d))
}

inline unlock(d)
{
	atomic { ring[d] = ring[d] & ~B(me); keys[d] = keys[d] & ~B(me) }
}

proctype Client(byte me; byte tries)
{
	byte d, mine;
	bit refused;

again:
	if
	:: tries > 0 -> tries--
	:: else -> goto fin
	fi;
	if
	:: d = 0
	:: routed & B(1) -> d = 1
	fi;
	refused = 0;
	if
	:: mine -> goto finish
	:: else
	fi;
#ifdef CHECK_FIRST
	look_for_fence(d);
	lock_ring(d);
#else
	lock_ring(d);
	look_for_fence(d);
#endif
	if
	:: refused -> unlock(d); goto again
	:: else
	fi;
	/* The look for the key. */
	if
	:: atomic { writer[d] == 0 && state[d] == DONE -> skip }; unlock(d); goto fin
	:: atomic { writer[d] == 0 && state[d] == PROGRESS -> skip }; unlock(d); goto again
	:: atomic { writer[d] != 0 -> skip }; unlock(d); goto again
	:: atomic { writer[d] == 0 && state[d] != DONE -> skip }
	fi;
	keys[d] = keys[d] | B(me);
	atomic {
		if
		:: writer[d] == 0 && state[d] != DONE ->
			writer[d] = me + 1; tokens[d]++; mine = tokens[d]
		:: else -> goto other
		fi
	};
	ring[d] = ring[d] & ~B(me);
	if
	:: atomic { writer[d] = 0; mine = 0 }
	:: atomic { writer[d] = 0; state[d] = DONE; token[d] = mine; effects++; mine = 0 }
	:: atomic { writer[d] = 0; state[d] = FREE; token[d] = mine; mine = 0 }
#if LEASES
	:: atomic { writer[d] = 0; state[d] = PROGRESS; token[d] = mine }
#endif
	fi;
	unlock(d);
	goto again;
other:
	unlock(d);
	goto again;
finish:
	lock_ring(d);
#ifndef FINISH_ANYWHERE
	look_for_fence(d);
#endif
	if
	:: refused -> unlock(d); goto again
	:: else
	fi;
	keys[d] = keys[d] | B(me);
	atomic {
		if
		:: writer[d] == 0 && state[d] == PROGRESS && token[d] == mine ->
			writer[d] = me + 1
		:: else -> mine = 0; goto other
		fi
	};
	ring[d] = ring[d] & ~B(me);
	if
	:: atomic { writer[d] = 0 }
	:: atomic { writer[d] = 0; state[d] = DONE; effects++; mine = 0 }
	fi;
	unlock(d);
	goto again;
fin:
	skip
}

/* Until the end of the commit, the lock is there. */
inline set_fence(d)
{
	if
	:: visible & B(d)
	:: else ->
		fences[d] = fences[d] | B(m);
		visible = visible | B(d);
		news[d] = ALL;
		fences[d] = fences[d] & ~B(m)
	fi
}

inline wait_for(set)
{
	held = set;
	(set & held) == 0
}

#define MAY_STOP if :: goto stop :: skip fi

proctype Mover(byte m; byte from)
{
	byte to, held, was, with, last;

	to = 1 - from;
	MAY_STOP;
#ifndef ONE_FENCE
	set_fence(to);
#endif
	routed = routed | B(to);
	MAY_STOP;
	set_fence(from);
	MAY_STOP;
#ifndef NO_WAIT_FENCE
	wait_for(fences[from]);
#endif
#ifdef KEYS_FIRST
	wait_for(keys[from]);
	wait_for(ring[from]);
#else
#ifndef NO_WAIT_RING
	wait_for(ring[from]);
#endif
#ifndef NO_WAIT_KEYS
	wait_for(keys[from]);
#endif
#endif
	atomic { was = state[from]; with = token[from]; last = tokens[from] };
	MAY_STOP;
	/* The import, in one transaction. */
	atomic {
#ifndef ONE_FENCE
		if
		:: !(visible & B(to)) -> goto stop
		:: else
		fi;
#endif
		sharing[to] = sharing[to] | B(m)
	};
#ifdef UNFENCE_FIRST
	visible = visible & ~B(to);
#endif
#ifndef TOKENS_APART
	atomic {
		if
		:: tokens[to] < last -> tokens[to] = last
		:: else
		fi
	};
#endif
	atomic {
		writer[to] == 0;
		if
#ifdef IMPORT_ALL
		:: with > 0 -> writer[to] = MOVER(m) + 1
#else
		:: with > token[to] -> writer[to] = MOVER(m) + 1
#ifndef TIES_STAY
		:: with == token[to] && was != state[to] && state[to] == PROGRESS ->
			writer[to] = MOVER(m) + 1
#endif
#endif
		:: else
		fi
	};
	if
	:: atomic {				/* unfence and commit */
			(sharing[to] & ~B(m)) == 0;
			if
			:: writer[to] == MOVER(m) + 1 ->
				state[to] = was; token[to] = with; writer[to] = 0
			:: else
			fi;
			visible = visible & ~B(to);
			sharing[to] = sharing[to] & ~B(m);
			assert(visible == B(from))
		}
	:: atomic {				/* roll back */
			true;
			if
			:: writer[to] == MOVER(m) + 1 -> writer[to] = 0
			:: else
			fi;
			sharing[to] = sharing[to] & ~B(m)
		}
	fi;
stop:
	stopped = stopped | B(m)
}

#ifdef UNFENCE_ANY
/* An operator who thinks that the move is over. */
proctype Operator()
{
end:	visible & B(1);
	visible = visible & ~B(1)
}
#endif

init {
	atomic {
		routed = B(0);
#ifdef UNFENCE_ANY
		run Operator();
#endif
		run Client(0, TRIES0);
		run Client(1, TRIES1);
		run Mover(0, 0)
	};
#if BACK
	stopped == B(0);
	run Mover(1, 1);
#elif MOVERS == 2
	run Mover(1, 0);
#endif
	_nr_pr <= LAST;
	assert(effects <= 1)
}
