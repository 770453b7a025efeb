/*
 * Stock: reservations that fall short wait in the queue of their item.
 *
 * One item with a piece.  Two sessions reserve and may wait, the first for two
 * pieces; pieces come in; a session reserves without waiting and may roll back;
 * one leaves the queue, or rolls that back.  The sweeper serves the queue when
 * it is called.
 *
 * - Whoever waits, as its committed row says, is not overtaken: neither by a
 *   reservation that begins later, nor by a later row.
 * - When all is quiet, the first of the queue falls short, or the queue is
 *   empty.  A call is never lost.
 * - The counter has what the tables have whenever no transaction has pinned it.
 *
 * JOIN_SILENT    the commit of a row that waits does not call the sweeper
 * BACK_SILENT    nor does a rollback that gives a quantity back
 * LOCK_FORGETS   a sweeper that meets a lock does not look again
 * CALL_LAST      the sweeper looks first, and then takes note of the call
 * FAIL_FORGETS   a sweeper that fails forgets the call
 * SKIP_LOCKED    it serves the next if the first is locked
 * TWO_LOOKS      a reservation looks whether others wait, and then takes
 * COMMIT_COUNTS  a row that waits is counted when it is committed
 * ROLLED_COUNTS  one that is rolled back is still counted
 */

#define WAITERS 2
#define NOBODY  WAITERS
#define WANTS(i) (2 - (i))		/* pieces */

/* The tables, as far as they are committed. */
byte on_hand = 1;
byte held = 0;
bit queue[WAITERS];
bit locked[WAITERS];

/* The counter. */
byte available = 1;
byte waiting = 0;
byte pins = 0;

bit called = 0;
bit told[WAITERS];				/* the session knows that it waits */
byte ended = 0;
bit idle = 1;

#define QUEUED          (queue[0] + queue[1])
#define FIRST           (queue[0] -> 0 : (queue[1] -> 1 : NOBODY))
#define CALL            if :: waiting > 0 -> called = 1 :: else fi
#define CHECK           assert(pins > 0 || (available == on_hand - held && \
	waiting == QUEUED))
#define NOBODY_TOLD     (!(queue[0] && told[0]) && !(queue[1] && told[1]))

proctype Waiter(byte me)
{
	atomic {
		pins++;
		if
		:: waiting == 0 && available >= WANTS(me) ->
			available = available - WANTS(me);
			assert(NOBODY_TOLD);
			goto TAKEN
		:: else
		fi
	};
#ifndef COMMIT_COUNTS
	waiting++;
#endif
	if
	:: queue[me] = 1;
		atomic {
#ifdef COMMIT_COUNTS
			waiting++;
#endif
			told[me] = 1;
			pins--;
#ifndef JOIN_SILENT
			called = 1;
#endif
			CHECK
		}
	:: atomic {
#if !defined(COMMIT_COUNTS) && !defined(ROLLED_COUNTS)
			waiting--;
#endif
			pins--;
			CHECK
		}
	fi;
	goto END;
TAKEN:
	if
	:: held = held + WANTS(me);
		atomic { pins--; CHECK }
	:: atomic {
			available = available + WANTS(me);
			pins--;
			CALL;
			CHECK
		}
	fi;
END:
	ended++
}

proctype Newcomer()
{
	bit free = 1;

	pins++;
#ifdef TWO_LOOKS
	free = waiting == 0;
#endif
	atomic {
#ifndef TWO_LOOKS
		free = waiting == 0;
#endif
		if
		:: free && available > 0 -> available--; assert(NOBODY_TOLD)
		:: else -> pins--; CHECK; goto END
		fi
	};
	if
	:: held++;
		atomic { pins--; CHECK }
	:: atomic {
			available++;
			pins--;
#ifndef BACK_SILENT
			CALL;
#endif
			CHECK
		}
	fi;
END:
	ended++
}

/* A receipt, or an expiry. */
proctype Adder()
{
	pins++;
	on_hand++;
	atomic { available++; pins--; CALL; CHECK };
	ended++
}

proctype Leaver()
{
	pins++;
	if
	:: atomic { queue[0] && !locked[0] -> locked[0] = 1 }
	:: goto END
	fi;
	if
	:: atomic { queue[0] = 0; locked[0] = 0 };
		atomic { waiting--; CALL }
	:: locked[0] = 0
	fi;
END:
	atomic { pins--; CHECK };
	ended++
}

proctype Sweeper()
{
	byte first;
	bit before[WAITERS];

SLEEP:
	idle = 1;
end:
	atomic {
		called -> idle = 0;
#ifndef CALL_LAST
		called = 0
#endif
	};
NEXT:
	pins++;
	atomic {
		first = FIRST;
#ifdef SKIP_LOCKED
		if :: first == 0 && locked[0] && queue[1] -> first = 1 :: else fi;
#endif
		before[0] = queue[0] && told[0];
		before[1] = queue[1] && told[1]
	};
	if
	:: first == NOBODY -> goto DONE
	:: else
	fi;
	if
	:: available < WANTS(first) -> goto DONE
	:: else
	fi;
	atomic {
		if
		:: queue[first] && !locked[first] -> locked[first] = 1
		:: else ->
#ifndef LOCK_FORGETS
			called = 1;
#endif
			goto DONE
		fi
	};
	atomic {
		if
		:: available >= WANTS(first) -> available = available - WANTS(first)
		:: else -> locked[first] = 0; goto DONE
		fi
	};
	if
	:: atomic {
			assert(first == 0 || !before[0] || !queue[0]);
			queue[first] = 0;
			locked[first] = 0;
			held = held + WANTS(first)
		};
		atomic { waiting--; pins--; CHECK };
		goto NEXT
	:: atomic {
			locked[first] = 0;
			available = available + WANTS(first);
			pins--;
#ifndef FAIL_FORGETS
			called = 1
#endif
		};
		goto SLEEP
	fi;
DONE:
	atomic { pins--; CHECK };
#ifdef CALL_LAST
	called = 0;
#endif
	goto SLEEP
}

init {
	byte first;

	atomic {
		run Waiter(0);
		run Waiter(1);
		run Newcomer();
		run Adder();
		run Adder();
		run Leaver();
		run Sweeper()
	};
	atomic {
		ended == 6 && idle && !called;
		assert(pins == 0 && available == on_hand - held && waiting == QUEUED);
		first = FIRST;
		assert(first == NOBODY || available < WANTS(first))
	}
}
