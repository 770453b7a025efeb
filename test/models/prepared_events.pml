/*
 * Outbox: transactions that are prepared, and a relay that finds them by the
 * lock that nextval has taken on the sequence of positions.  outbox.pml has
 * what does not concern them.
 *
 * Transaction 0 takes up to two positions and may be prepared; so may
 * transaction 1, with PREPARES=3.  Another session ends what is prepared.  The
 * server may crash.
 *
 * Checked: each committed row is delivered, and once if nothing crashed; only
 * committed rows are; and a pass leaves a visible row behind only for a young
 * transaction that is open and not prepared.
 *
 * Bounds: NCRASH crashes, ROWS rows of transaction 0, OTHERS=0 without
 * transaction 1, PREPARES: a mask of those that can be prepared.
 *
 * Wrong variants:
 *   LEAVE_BEFORE     a transaction leaves the set before it is prepared
 *   LOCKS_FIRST      the relay looks at the locks before the set
 *   SNAPSHOT_FIRST   the snapshot is taken before the relay looks at the locks
 *   NO_LOCKS         the relay does not look at the locks
 *   NO_RECOVERED     it does not know those that were prepared before a crash
 *   SAVEPOINT_LOCK   a savepoint that is rolled back releases the lock
 *   SHARED           two prepared ones cannot be told apart
 *   SHARED_ANY       and the relay takes one of them for the other
 *   LATE_BOUND       a prepared transaction has no position before the highest
 *   YOUNG            a prepared transaction has a grace
 *   UNLOCK_FIRST     the locks are released before the end is visible
 *   WAKE_FIRST       the relay is woken before the end is visible
 *   NO_WAKE          it is not woken
 */
#ifndef NCRASH
#define NCRASH 0
#endif
#ifndef ROWS
#define ROWS 1
#endif
#ifndef OTHERS
#define OTHERS 1
#endif
#ifndef PREPARES
#define PREPARES 1
#endif
#define NT 2
#define MAXID 3
#define B(t) (1<<(t))

/* The database.  Sets of transactions are bit masks. */
byte seq;				/* last value of the sequence */
byte own[MAXID + 1];	/* owner + 1 of the row at a position; 0: none */
byte started, ended, com;
byte prepared;			/* durably, and not ended */
byte pP, pK;			/* the pair as written down: position, stragglers */
byte pfrom[NT];
/* Shared memory, which a crash loses. */
byte on, lo[NT], old;	/* the set of open transactions */
byte locks;				/* whoever has taken a position */
byte recovered;			/* of the prepared ones: before the last crash */
byte can_end;			/* another session can end them */
bit chg, armed, latch;
/* For the assertions and the crash. */
byte killed; bit rk, fk;
byte ncrash;
byte dl[MAXID + 1];

#define LEAVE(t) atomic { on = on & ~B(t); lo[t] = 0; old = old & ~B(t) }
#define WAKE chg = 1; atomic { if :: armed -> latch = 1 :: else fi }

proctype Enqueuer(byte t; byte n)
{
  {
	atomic { started = started | B(t); lo[t] = seq + 1; on = on | B(t) };
again:
	atomic { seq++; own[seq] = t + 1; locks = locks | B(t); n-- };
#ifdef SAVEPOINT_LOCK
	if
	:: locks = locks & ~B(t)
	:: true
	fi;
#endif
	if
	:: n > 0 -> goto again
	:: true
	fi;
	if
	:: true -> atomic { ended = ended | B(t); com = com | B(t) };
		LEAVE(t);
		locks = locks & ~B(t)
	:: true -> ended = ended | B(t);
		LEAVE(t);
		locks = locks & ~B(t)
	:: PREPARES & B(t) ->
#ifdef LEAVE_BEFORE
		LEAVE(t);
#endif
		prepared = prepared | B(t);		/* durable, and a process of its own */
		skip;							/* which gets the locks */
		LEAVE(t);
		can_end = can_end | B(t);
		goto fin
	fi;
	WAKE
  } unless { killed & B(t) };
fin:	skip
}

/* COMMIT or ROLLBACK PREPARED. */
proctype Finisher()
{
	byte t;
endstart:
  {
end:	do
	:: atomic { can_end & B(0) -> t = 0; can_end = can_end & ~B(0) };
		goto decide
	:: atomic { can_end & B(1) -> t = 1; can_end = can_end & ~B(1) };
		goto decide
	od;
decide:
#ifdef WAKE_FIRST
	WAKE;
#endif
#ifdef UNLOCK_FIRST
	atomic { locks = locks & ~B(t); prepared = prepared & ~B(t) };
#endif
	if
	:: atomic { ended = ended | B(t); com = com | B(t) }
	:: ended = ended | B(t)
	fi;
	atomic { locks = locks & ~B(t); prepared = prepared & ~B(t) };
#if !defined(WAKE_FIRST) && !defined(NO_WAKE)
	WAKE;
#endif
	atomic { t = 0; goto end }
  } unless { atomic { fk -> fk = 0; t = 0; goto endstart } }
}

proctype Clock()
{
end:	do
	:: atomic { (on & B(0)) && !(old & B(0)) -> old = old | B(0); latch = 1 }
	:: atomic { (on & B(1)) && !(old & B(1)) -> old = old | B(1); latch = 1 }
	od
}

/* A restart has the prepared transactions and their locks before anybody comes. */
proctype Crash()
{
end:	do
#if NCRASH
	:: atomic { ncrash < NCRASH ->
		ncrash++;
		killed = killed | started;
		ended = ended | (started & ~prepared);
		prepared = prepared & ~ended;
		locks = locks & prepared;
		recovered = prepared;
		can_end = prepared;
		on = 0; old = 0; lo[0] = 0; lo[1] = 0;
		chg = 0; armed = 0; latch = 0;
		rk = 1; fk = 1 }
#endif
	:: ncrash == NCRASH -> break
	od
}

#define COPY_SET \
	atomic { R = on; Rlo[0] = lo[0]; Rlo[1] = lo[1]; Ryoung = on & ~old }

/*
 * A lock names its holder.  Only one that is prepared is looked for here.  Two
 * of the same name cannot be told apart.
 */
#ifdef NO_RECOVERED
#define FOUND (H & prepared & ~recovered)
#else
#define FOUND (H & prepared)
#endif
#if defined(SHARED) || defined(SHARED_ANY)
#define AMBIGUOUS ((prepared & ~recovered) == 3 && H)
#else
#define AMBIGUOUS 0
#endif
#ifdef SHARED_ANY
#define GUESS Rp = 1
#else
#define GUESS all = 1
#endif
#define LOOK_AT_LOCKS \
	H = locks; \
	atomic { if :: AMBIGUOUS -> GUESS :: else -> Rp = FOUND fi; H = 0 }

#ifdef LATE_BOUND
#define PREPARED_LO (M + 1)
#else
#define PREPARED_LO 1
#endif
#define LO(t) ((R & B(t)) -> Rlo[t] : PREPARED_LO)
#ifdef YOUNG
#define WAITS_FOR(t) ((Ryoung & B(t)) || !(R & B(t)))
#else
#define WAITS_FOR(t) (Ryoung & B(t))
#endif

inline deliver(r)
{
	assert(com & B(own[r] - 1));
	assert(ncrash > 0 || dl[r] == 0);
	dl[r] = 1
}

proctype Relay()
{
	byte P, K, M, lim, R, Rp, H, Ryoung, se, sc, nK, strag, r, t;
	byte Rlo[NT], from[NT];
	bit all;
start:
	atomic {
		rk = 0; P = pP; K = pK; from[0] = pfrom[0]; from[1] = pfrom[1];
		M = 0; lim = 0; R = 0; Rp = 0; H = 0; Ryoung = 0; se = 0; sc = 0;
		nK = 0; strag = 0; r = 0; t = 0; all = 0; Rlo[0] = 0; Rlo[1] = 0 };
  {
	do
	:: true ->
		atomic { latch = 0; chg = 0 };
		M = seq;
#ifdef LOCKS_FIRST
		LOOK_AT_LOCKS;
#endif
		COPY_SET;
#ifdef SNAPSHOT_FIRST
		atomic { se = ended; sc = com };
#endif
#if !defined(LOCKS_FIRST) && !defined(NO_LOCKS)
		LOOK_AT_LOCKS;
#endif
		atomic {		/* the rest of the pass depends on the snapshot only */
#ifndef SNAPSHOT_FIRST
			se = ended; sc = com;
#endif
			if :: all -> Rp = started & ~se; all = 0 :: else fi;
			lim = M; strag = 0; t = 0;
			do
			:: t < NT ->
				if
				:: ((R | Rp) & B(t)) && !(se & B(t)) && LO(t) <= M ->
					strag = strag | B(t);
					if
					:: WAITS_FOR(t) && LO(t) - 1 < lim -> lim = LO(t) - 1
					:: else
					fi
				:: else
				fi;
				t++
			:: else -> break
			od;
			if :: lim < P -> lim = P :: else fi;
			nK = K & ~se;
			t = 0;
			do
			:: t < NT ->
				if
				:: (strag & B(t)) && LO(t) <= lim ->
					nK = nK | B(t);
					if :: !(K & B(t)) -> from[t] = P + 1 :: else fi
				:: else
				fi;
				t++
			:: else -> break
			od;
			t = 0; r = 1;
			do
			:: r <= lim ->
				if
				:: own[r] && (sc & B(own[r] - 1)) &&
					(r > P || ((K & B(own[r] - 1)) && r >= from[own[r] - 1])) ->
					deliver(r)
				:: else
				fi;
				r++
			:: else -> break
			od;
			r = 1;
			do
			:: r <= M ->
				if
				:: own[r] && (sc & B(own[r] - 1)) && dl[r] == 0 ->
					assert((strag & Ryoung & 1 && Rlo[0] <= r) ||
						(strag & Ryoung & 2 && Rlo[1] <= r))
				:: else
				fi;
				r++
			:: else -> break
			od;
			r = 0;
			P = lim; K = nK;
			pP = P; pK = K; pfrom[0] = from[0]; pfrom[1] = from[1];
			lim = 0; R = 0; Rp = 0; Ryoung = 0; se = 0; sc = 0; nK = 0;
			strag = 0; M = 0; Rlo[0] = 0; Rlo[1] = 0 };
		armed = 1;
		if
		:: atomic { chg -> armed = 0 }
		:: !chg ->
end:		atomic { latch -> armed = 0 }
		fi
	od
  } unless { atomic { rk -> goto start } }
}

/* When nothing moves any more. */
proctype Quiet()
{
	byte r;
end:	atomic { timeout -> r = 1;
		do
		:: r <= MAXID ->
			if
			:: own[r] && (com & B(own[r] - 1)) -> assert(dl[r])
			:: else
			fi;
			r++
		:: else -> break
		od; r = 0 }
}

init {
	atomic {
		run Relay();
		run Enqueuer(0, ROWS);
#if OTHERS
		run Enqueuer(1, 1);
#endif
		run Clock();
		run Finisher();
		run Crash();
		run Quiet()
	}
}
