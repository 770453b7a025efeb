/*
 * Claims ring: the locks alone.
 *
 * Two transactions claim the same two keys in opposite order, while a switcher
 * waits for the lock of the ring.  Later claimers queue behind the switcher, as
 * in the lock queue of PostgreSQL.  The deadlock detector resolves cycles of
 * waits for transactions.  Every other cycle is an invalid end state.
 *
 * WAIT_LOCKED  a claimer waits for the other transaction with the ring locked
 */

byte owner[2];			/* uncommitted owner + 1 of a key */
byte readers = 0;		/* claimers that hold the lock of the ring */
bit wwait = 0;			/* the switcher is in the queue */
bit wlock = 0;			/* the switcher has the lock */
byte w4[2];			/* the owner + 1 that a transaction waits for */
byte victims = 0;

inline shared() { atomic { (!wlock && !wwait) -> readers++ } }

proctype Claimer(byte me; byte k1)
{
	byte i = 0;
	byte k;

	do
	:: i < 2 -> k = (i == 0 -> k1 : 1 - k1);
RETRY:		shared();
		if
		:: atomic { owner[k] == 0 -> owner[k] = me + 1; readers--; i++ }
		:: atomic { owner[k] != 0 && owner[k] != me + 1 ->
#ifndef WAIT_LOCKED
				readers--;
#endif
				w4[me] = owner[k] };
			if
			:: atomic { owner[k] != w4[me] -> w4[me] = 0 }
			/* The deadlock detector ends this one. */
			:: atomic { w4[me] == 2 - me && w4[1 - me] == me + 1 ->
					victims++; w4[me] = 0;
#ifdef WAIT_LOCKED
					readers--;
#endif
					goto ABORT }
			fi;
#ifdef WAIT_LOCKED
			readers--;
#endif
			goto RETRY
		fi
	:: else -> break
	od;
ABORT:	atomic {
		if :: owner[0] == me + 1 -> owner[0] = 0 :: else fi;
		if :: owner[1] == me + 1 -> owner[1] = 0 :: else fi }
}

proctype Switcher()
{
	byte n = 2;

	do
	:: n > 0 -> n--; wwait = 1;
		atomic { readers == 0 -> wwait = 0; wlock = 1 };
		wlock = 0
	:: else -> break
	od
}

init {
	atomic { run Claimer(0, 0); run Claimer(1, 1); run Switcher() }
	(_nr_pr == 1);
	assert(victims <= 1);
	assert(readers == 0)
}
