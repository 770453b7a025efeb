/*
 * Stock: one item's counter, and what prepared transactions have done to it.
 * escrow.pml has what does not concern them.
 *
 * Two sessions take a unit or add one, and then commit, roll back or prepare;
 * each has up to NTX transactions, and prepares one at most.  Another session
 * ends what is prepared.  There are external DML, eviction, a sweeper and
 * crashes.
 *
 * Checked: no more is sold than there is; whenever nobody uses the counter, it
 * equals the table; and external DML finds a counter that nobody uses.
 *
 * Bounds: UNITS at the start, NTX, NCRASH crashes, NEXTERNAL and NEVICT times
 * external DML and eviction, ROOM of the table of what is in doubt.
 *
 * Other variants that are right:
 *   NO_HOOK          only the sweeper settles what has been prepared
 *
 * Wrong variants:
 *   PREPARE_SETTLES  PREPARE gives back what was taken
 *   NO_PIN           what is in doubt does not pin the counter
 *   KEEP_FAILED      the entries of a PREPARE that fails stay
 *   ACTIVATE_LATE    others can end the transaction before its entry is active
 *   SETTLE_EARLY     settles when the commit is recorded, before it is visible
 *   LOCK_RELEASED    PREPARE releases the lock on the log
 *   UNLOCK_FIRST     the lock is released before the end is visible
 *   EXTERNAL_BLIND   external DML does not settle what has ended
 *   EXTERNAL_EARLY   it does so before it has its lock
 *   LOAD_BLIND       a load does not look for what is in doubt
 *   LEVEL_FIRST      it reads what is committed first
 *   NO_SECOND_LOOK   it does not look whether a transaction has ended meanwhile
 *   LOAD_PENDING     it promises what a prepared transaction has added
 *   LOAD_NO_ENTRY    it subtracts what is taken, and enters nothing
 *   ENTER_FIRST      its entries are active before the counter is published
 */
#ifndef UNITS
#define UNITS 1
#endif
#ifndef NTX
#define NTX 1
#endif
#ifndef NCRASH
#define NCRASH 0
#endif
#ifndef NEXTERNAL
#define NEXTERNAL 1
#endif
#ifndef NEVICT
#define NEVICT 1
#endif
#ifndef ROOM
#define ROOM 2
#endif
#define B(t) (1<<(t))

mtype = { MISSING, LOADING, READY };

/* The database. */
short level = UNITS;	/* what is available by what is committed */
byte prepared;			/* and its end is not visible */
byte recorded;			/* the end of it is recorded */
byte committed;			/* as recorded */
byte has_ended;			/* visibly */
bit taken[2], added[2];	/* the rows of what is in doubt */
/* Shared memory. */
mtype state = MISSING;
byte pins;
short available;
byte entry, live;		/* of what is in doubt */
bit etaken[2], eadded[2];
byte can_end;
byte recovered;			/* prepared before the last crash */
/* The lock on the log. */
byte shared_locks;
bit exclusive;
/* For the crash. */
byte dead;
byte ncrash;

#define COUNT2(set) (((set) & 1) + (((set) >> 1) & 1))
#define CHECK assert(level >= 0); \
	if :: state == READY && pins == 0 && !exclusive -> assert(available == level) :: else fi
#ifdef NO_PIN
#define ENTRY_PINS 0
#else
#define ENTRY_PINS 1
#endif
#ifdef SETTLE_EARLY
#define GONE(t) ((recorded | has_ended) & B(t))
#else
#define GONE(t) (has_ended & B(t))
#endif

#define RESOLVE1(t) \
	if \
	:: (live & B(t)) && GONE(t) -> \
		available = available + ((committed & B(t)) -> eadded[t] : etaken[t]); \
		pins = pins - ENTRY_PINS; \
		entry = entry & ~B(t); live = live & ~B(t); \
		etaken[t] = 0; eadded[t] = 0 \
	:: else \
	fi
#define RESOLVE RESOLVE1(0); RESOLVE1(1); CHECK

proctype Session(byte me)
{
	byte n = NTX, D = 0, k = 0;
	bit t = 0, a = 0;
	short base = 0;
next:
  {
	do
	:: n == 0 -> goto over
	:: n > 0 ->
		atomic { !exclusive -> n--; shared_locks++ };
touch:		atomic {
			if
			:: state == MISSING -> state = LOADING; pins++; goto load
			:: state == READY -> pins++; goto work
			:: state == LOADING -> goto wait
			fi };
wait:		state != LOADING -> goto touch;
load:
#ifdef LEVEL_FIRST
		base = level;
#endif
#ifdef LOAD_BLIND
		D = 0;
#else
		D = prepared & recovered;
#endif
#ifdef ENTER_FIRST
		atomic {
			k = 0;
			do
			:: k < 2 ->
				if
				:: D & B(k) -> entry = entry | B(k); live = live | B(k);
					etaken[k] = taken[k]; eadded[k] = added[k]; pins++
				:: else
				fi;
				k++
			:: else -> break
			od;
			k = 0 };
#endif
#ifndef LEVEL_FIRST
		base = level;
#endif
		atomic {
			if
#if !defined(NO_SECOND_LOOK) && !defined(ENTER_FIRST)
			:: D & has_ended -> D = 0; base = 0; goto load
			:: !(D & has_ended) && COUNT2(entry) + COUNT2(D) > ROOM ->
				state = MISSING; pins--; shared_locks--; D = 0; base = 0;
				goto next
#endif
			:: else ->
				available = base;
				k = 0;
				do
				:: k < 2 ->
					if
					:: D & B(k) ->
						available = available - taken[k];
#ifdef LOAD_PENDING
						available = available + added[k];
#endif
#if !defined(ENTER_FIRST) && !defined(LOAD_NO_ENTRY)
						entry = entry | B(k); live = live | B(k);
						etaken[k] = taken[k]; eadded[k] = added[k];
#ifdef LOAD_PENDING
						eadded[k] = 0;
#endif
						pins = pins + ENTRY_PINS;
#endif
					:: else
					fi;
					k++
				:: else -> break
				od;
				k = 0; D = 0; base = 0;
				state = READY
			fi };
work:		atomic {
			if
			:: available > 0 -> available--; t = 1
			:: a = 1
			fi };
		if
		:: atomic { level = level + a - t; assert(level >= 0) };
			atomic { available = available + a; pins--; CHECK };
			goto release
		:: goto rollback
		:: !((prepared | has_ended | entry) & B(me)) && COUNT2(entry) < ROOM -> goto prepare
		fi;
prepare:	atomic {
			if
			:: COUNT2(entry) < ROOM -> entry = entry | B(me); etaken[me] = t; eadded[me] = a
			:: else -> goto rollback
			fi };
		if
		:: true ->				/* the name is in use, the disk is full */
#ifndef KEEP_FAILED
			atomic { entry = entry & ~B(me); etaken[me] = 0; eadded[me] = 0 };
#endif
			goto rollback
		:: true
		fi;
		atomic { prepared = prepared | B(me); taken[me] = t; added[me] = a };
#ifdef ACTIVATE_LATE
		can_end = can_end | B(me);
#endif
#ifdef PREPARE_SETTLES
		atomic { available = available + t; etaken[me] = 0 };
#endif
		atomic { live = live | B(me); pins = pins - (1 - ENTRY_PINS); t = 0; a = 0 };
#ifdef LOCK_RELEASED
		shared_locks--;
#endif
#ifndef ACTIVATE_LATE
		can_end = can_end | B(me);
#endif
		goto next;
rollback:	atomic { available = available + t; pins--; CHECK };
release:	atomic { shared_locks--; t = 0; a = 0 }
	od
  } unless { atomic { dead & B(me) -> dead = dead & ~B(me); n = 1; t = 0; a = 0; D = 0; k = 0; base = 0; goto next } };
over:	skip
}

#ifdef LOCK_RELEASED
#define RELEASE(t) skip
#else
#define RELEASE(t) shared_locks--
#endif

/* COMMIT or ROLLBACK PREPARED, step by step, also after a crash. */
proctype Finisher()
{
	byte me;
endstart:
  {
end:	do
	:: atomic { can_end & B(0) -> me = 0; can_end = can_end & ~B(0) };
		goto decide
	:: atomic { can_end & B(1) -> me = 1; can_end = can_end & ~B(1) };
		goto decide
	od;
decide:
	if
	:: atomic { recorded = recorded | B(me); committed = committed | B(me) }
	:: recorded = recorded | B(me)
	fi;
#ifdef UNLOCK_FIRST
	RELEASE(me);
#endif
	atomic {
		level = level + ((committed & B(me)) -> added[me] - taken[me] : 0);
		assert(level >= 0);
		prepared = prepared & ~B(me); has_ended = has_ended | B(me) };
#ifndef UNLOCK_FIRST
	RELEASE(me);
#endif
#ifndef NO_HOOK
	atomic { RESOLVE };
#endif
	atomic { me = 0; goto end }
  } unless { atomic { dead & 4 -> dead = dead & ~4; me = 0; goto endstart } }
}

proctype Sweeper()
{
end:	do
	:: atomic { ((live & 1) && GONE(0)) || ((live & 2) && GONE(1)) -> RESOLVE }
	od
}

proctype External()
{
	byte n = NEXTERNAL;
end:	do
	:: n > 0 ->
#ifdef EXTERNAL_EARLY
		atomic { RESOLVE };
#endif
		atomic { shared_locks == 0 && !exclusive -> exclusive = 1 };
#if !defined(EXTERNAL_BLIND) && !defined(EXTERNAL_EARLY)
		atomic { RESOLVE };
#endif
		level++;
		atomic { assert(pins == 0); state = MISSING; available = 0 };
		atomic { exclusive = 0; n-- }
	:: n == 0 -> break
	od
}

proctype Evict()
{
	byte n = NEVICT;
end:	do
	:: atomic { n > 0 && state == READY && pins == 0 -> CHECK; state = MISSING; available = 0; n-- }
	:: n == 0 -> break
	od
}

proctype Crash()
{
end:	do
#if NCRASH
	:: atomic { ncrash < NCRASH && !exclusive ->
		ncrash++;
		dead = 7;
		/* What was recorded is replayed. */
		level = level + ((recorded & committed & prepared & 1) -> added[0] - taken[0] : 0);
		level = level + ((recorded & committed & prepared & 2) -> added[1] - taken[1] : 0);
		assert(level >= 0);
		has_ended = has_ended | (recorded & prepared);
		prepared = prepared & ~recorded;
		recovered = prepared;
		can_end = prepared;
		shared_locks = COUNT2(prepared);
		state = MISSING; pins = 0; available = 0;
		entry = 0; live = 0; etaken[0] = 0; etaken[1] = 0; eadded[0] = 0; eadded[1] = 0 }
#endif
	:: ncrash == NCRASH -> break
	od
}

/* When nothing moves any more, nobody uses the counter, and nothing is in doubt. */
proctype Quiet()
{
end:	atomic { timeout -> assert(pins == 0); assert(shared_locks == 0); assert(entry == 0); CHECK }
}

init {
	atomic {
		run Session(0);
		run Session(1);
		run Finisher();
		run Sweeper();
		run External();
		run Evict();
		run Crash();
		run Quiet()
	}
}
