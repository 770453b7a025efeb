/*
 * Outbox: positions, the set of open transactions, and the passes of a relay
 * that reads one partition.
 *
 * Up to three transactions take positions, commit, roll back, or stay open for
 * ever.  The relay may be killed, and the server may crash.  A step of the
 * relay that looks at shared memory is a step here.
 *
 * Checked: each committed row is delivered, once where nothing was killed; only
 * committed rows are delivered, and, after a crash, none that the crash took
 * back; what a transaction has seen committed is delivered before its own rows;
 * and a pass leaves a visible row behind only for a young open transaction.
 *
 * Bounds: N0, N1, N2 rows of each transaction (0: there is none), NCRASH
 * crashes, NKILL kills of the relay, CHUNK=1 the relay may stop after any row,
 * ASYNC=1 commits may be asynchronous, TRUNC=1 the log is truncated.  FINE
 * splits steps that are one otherwise.  MAXID is the number of positions: one
 * is wasted when another session has noted a higher one first.
 *
 * Wrong variants:
 *   COPY_FIRST         the set of open transactions is copied before the highest position is read
 *   SNAPSHOT_FIRST     the snapshot is taken before both
 *   SNAPSHOT_SECOND    the snapshot is taken between the two
 *   POSITION_LAST      the highest position is read after the snapshot
 *   OPEN_LATER         whether a transaction is open is asked after the snapshot
 *   ROWS_LATER         rows are read with a later snapshot
 *   ENTER_LATE         a transaction enters the set after its first position
 *   LEAVE_EARLY        it leaves before its end is visible
 *   LEAVE_SUB          it leaves at the end of a subtransaction
 *   WAKE_EARLY         the relay is woken before the commit is visible
 *   NO_SECOND_LOOK     the relay sleeps without looking for ends since the pass
 *   YOUNG_ONLY         a pass that a young transaction limits notes no old ones
 *   OLD_LIMIT          old transactions limit the pass, too
 *   NO_CLAMP           the limit can lie below the position of the partition
 *   RANGE_FIRST        rows of stragglers are read after the range
 *   WINDOW_END         a straggler's rows are read up to a fixed position
 *   PERSIST_FIRST      the pair is written down before the delivery
 *   NO_STRAGGLERS      stragglers are not written down
 *   NO_FLUSH           nothing is made durable before it is sent
 *   COUNT_LATE         an asynchronous commit is counted as begun when it is visible
 *   TRUNCATE_POSITION  truncation does not look at stragglers
 */
#ifndef N0
#define N0 2
#endif
#ifndef N1
#define N1 1
#endif
#ifndef N2
#define N2 1
#endif
#ifndef NCRASH
#define NCRASH 0
#endif
#ifndef NKILL
#define NKILL 0
#endif
#ifndef CHUNK
#define CHUNK 0
#endif
#ifndef ASYNC
#define ASYNC 0
#endif
#ifndef TRUNC
#define TRUNC 0
#endif
#define NT 3
/* A position is wasted for each that another transaction takes in between. */
#if N2 > 0
#define MAXID (3*(N0+N1+N2)+NCRASH)
#else
#define MAXID (2*(N0+N1)+NCRASH)
#endif
#define B(t) (1<<(t))
#if !defined(FINE) && !defined(POSITION_LAST) && !defined(OPEN_LATER) && !defined(ROWS_LATER)
/*
 * What is delivered depends on the snapshot only, and nobody looks at it before
 * the pass is over: one step, in which a kill or crash may strike after any
 * delivery.
 */
#define ONESTEP
#endif

/* The database, which survives a crash.  Sets of transactions are bit masks. */
byte seq;			/* last value of the sequence */
byte dseq;			/* what of it is durable */
byte started, ended, com;	/* open: started and not ended */
byte durable;			/* committed and flushed */
byte own[MAXID + 1];		/* owner + 1 of the row at a position; 0: none */
byte cs[MAXID + 1];		/* who had committed when the position was taken */
byte pP, pK;			/* the pair as written down: position, stragglers */
byte pfrom[NT];			/* and the first position of each that is still to be read */
/* Shared memory, which a crash loses. */
byte maxid;			/* the highest position that is known */
byte on;			/* the set of open transactions */
byte lo[NT];			/* with which lower bound */
byte old;			/* and past the grace */
bit chg;			/* some transaction has ended */
bit armed, latch;		/* the relay sleeps; it was woken */
byte abegun, aended;		/* asynchronous commits */
/* For the assertions, and for kills. */
byte killed; bit rk;
byte ncrash, nkill;
bit within_bounds = 1;
byte dl[MAXID + 1];		/* deliveries of a position, 2 at the most */

#define INPROG (started & ~ended)
#define LEAVE(t) atomic { on = on & ~B(t); lo[t] = 0; old = old & ~B(t) }
#define VISIBLE_COMMIT(t) ended = ended | B(t); com = com | B(t); durable = durable | com; dseq = seq

proctype Enqueuer(byte t; byte n)
{
	byte l, id;
  {
#ifdef FINE
	atomic { started = started | B(t) };		/* it has its transaction id */
#endif
#ifdef LEAVE_SUB
	skip;
again0:
#endif
#ifndef ENTER_LATE
#ifdef FINE
	l = maxid + 1;
	atomic { lo[t] = l; on = on | B(t); l = 0 };
#else
	atomic { started = started | B(t); lo[t] = maxid + 1; on = on | B(t) };
#endif
#else
	skip;
#endif
again:	/* Take a number.  It is a position if it raises the highest one. */
	atomic { started = started | B(t); seq++; id = seq; cs[id] = com; within_bounds = (id <= MAXID); assert(within_bounds) };
#ifdef ENTER_LATE
	atomic { if :: on & B(t) -> skip :: else -> lo[t] = id; on = on | B(t) fi };
#endif
	atomic {
		if
		:: id > maxid -> maxid = id
		:: else -> id = 0; goto again
		fi;
#ifdef FINE
	};
	atomic {
#endif
		own[id] = t + 1; n-- };			/* visible with the commit */
	if
	:: n > 0 -> goto again
#ifdef LEAVE_SUB
	:: n > 0 -> LEAVE(t); goto again0
#endif
	:: true
	fi;
	if
#if defined(LEAVE_EARLY)
	:: true -> LEAVE(t); atomic { VISIBLE_COMMIT(t) }
	:: true -> LEAVE(t); ended = ended | B(t)
#elif defined(WAKE_EARLY)
	:: true -> chg = 1; if :: armed -> latch = 1 :: else fi;
		atomic { VISIBLE_COMMIT(t) }; LEAVE(t); goto fin
#else
	:: true -> atomic { VISIBLE_COMMIT(t) }; LEAVE(t)
#if ASYNC
#ifdef COUNT_LATE
	:: true -> atomic { ended = ended | B(t); com = com | B(t) }; abegun++; aended++; LEAVE(t)
#else
	:: true -> abegun++; atomic { ended = ended | B(t); com = com | B(t) }; aended++; LEAVE(t)
#endif
#endif
	:: true -> ended = ended | B(t); LEAVE(t)	/* rollback */
#endif
	:: true -> goto fin				/* open for ever */
	fi;
	chg = 1;
	atomic { id = 0; if :: armed -> latch = 1 :: else fi };
  } unless { killed & B(t) };
fin:	skip
}

/* The grace of a transaction ends at any time, which wakes the relay. */
proctype Clock()
{
end:	do
	:: atomic { (on & B(0)) && !(old & B(0)) -> old = old | B(0); latch = 1 }
	:: atomic { (on & B(1)) && !(old & B(1)) -> old = old | B(1); latch = 1 }
	:: atomic { (on & B(2)) && !(old & B(2)) -> old = old | B(2); latch = 1 }
	od
}

proctype Crash()
{
	byte i, s;
end:	do
#if NCRASH
	:: atomic { ncrash < NCRASH ->
		ncrash++;
		/* Open transactions go, and commits that were not flushed; none that was announced. */
		i = started & ~ended;
		i = i | (com & ~durable);
		s = 1; do :: s <= MAXID -> if :: own[s] && (i & B(own[s] - 1)) -> assert(dl[s] == 0) :: else fi; s++ :: else -> break od;
		com = com & durable; ended = ended | i; killed = killed | started;
		/* The sequence is somewhere between what is durable and one ahead. */
		s = dseq;
		do :: s < seq + 1 -> s++ :: break od;
		if :: seq < dseq -> assert(false) :: else fi;
		seq = s; dseq = s;
		i = 1; do :: i <= MAXID -> if :: i > seq -> own[i] = 0 :: else fi; i++ :: else -> break od;
		assert(pP <= seq);
		on = 0; old = 0; lo[0] = 0; lo[1] = 0; lo[2] = 0; chg = 0; armed = 0; latch = 0; maxid = 0;
		abegun = 0; aended = 0; i = 0; s = 0; rk = 1 }
#endif
	:: ncrash == NCRASH -> break
	od
}

#if TRUNC
/*
 * A segment with position 1 is truncated when the pair as written down needs
 * nothing of it, and no open transaction has a row there, since that has the
 * segment locked.
 */
proctype Truncater()
{
#ifdef TRUNCATE_POSITION
#define STRAGGLERS_PAST true
#else
#define PAST(t) (!(pK & B(t)) || pfrom[t] > 1)
#define STRAGGLERS_PAST (PAST(0) && PAST(1) && PAST(2))
#endif
end:	atomic { pP >= 1 && !(own[1] && (INPROG & B(own[1] - 1))) && STRAGGLERS_PAST ->
		if :: own[1] && (com & B(own[1] - 1)) -> assert(dl[1] > 0) :: else fi }
}
#endif

#define COPY_SLOT if :: on & B(t) -> Rm = Rm | B(t); Rlo[t] = lo[t]; Rold = Rold | (old & B(t)) :: else fi; t++
#ifdef FINE
#define COPY_SET t = 0; do :: atomic { t < NT -> COPY_SLOT } :: atomic { t == NT -> t = 0; break } od
#else
#define COPY_SET atomic { t = 0; do :: t < NT -> COPY_SLOT :: t == NT -> t = 0; break od }
#endif

/* from[] is a straggler's first position that is still to be read. */
#ifdef WINDOW_END
#define IN_WINDOW (r <= from[own[r] - 1])
#else
#define IN_WINDOW (r >= from[own[r] - 1])
#endif
#ifdef YOUNG_ONLY
#define MAY_NOTE !(strag & ~Rold)
#else
#define MAY_NOTE true
#endif
#define ADVANCE(t) if :: (K & se & B(t)) && from[t] < r + 1 -> from[t] = r + 1 :: else fi

inline deliver(r)
{ d_step {
	assert(com & B(own[r] - 1));
	assert(ncrash > 0 || nkill > 0 || dl[r] == 0);
	if
	:: dl[r] == 0 ->
		/* What had committed before this position was taken was delivered. */
		q = 1;
		do
		:: q <= MAXID ->
			if :: own[q] && (cs[r] & com & B(own[q] - 1)) && q != r -> assert(dl[q] > 0) :: else fi;
			q++
		:: else -> break
		od;
		q = 0
	:: else
	fi;
	if :: dl[r] < 2 -> dl[r]++ :: else fi } }

#define ZERO M = 0; lim = 0; Rm = 0; Rold = 0; se = 0; sc = 0; nK = 0; strag = 0; r = 0; t = 0; q = 0; ae = 0; stop = 0; Rlo[0] = 0; Rlo[1] = 0; Rlo[2] = 0

proctype Relay()
{
	byte P, K, M, lim, Rm, Rold, se, sc, nK, strag, r, t, q;
	byte Rlo[NT]; byte from[NT];
	bit stop;			/* the chunk is full */
	byte ae, kbegun; bit known;	/* all commits were durable when so many had begun */
start:
	atomic { rk = 0; P = pP; K = pK; from[0] = pfrom[0]; from[1] = pfrom[1]; from[2] = pfrom[2];
		known = 0; kbegun = 0; ZERO }
  {
	do
	:: true ->
		atomic { latch = 0; chg = 0 }
		/* One after the other: the highest position, the set, the snapshot. */
#ifdef SNAPSHOT_FIRST
		atomic { se = ended; sc = com }
#endif
#ifdef COPY_FIRST
		COPY_SET;
		M = seq;
#else
#ifndef POSITION_LAST
		M = seq;
#endif
#ifdef SNAPSHOT_SECOND
		atomic { se = ended; sc = com }
#endif
		COPY_SET;
#endif
#if ASYNC
		ae = aended;
#endif
#ifdef ONESTEP
		atomic {
#endif
#if !defined(SNAPSHOT_FIRST) && !defined(SNAPSHOT_SECOND)
		atomic { se = ended; sc = com };
#endif
#ifdef POSITION_LAST
		M = seq;
#endif
#ifdef OPEN_LATER
		se = ended;
#endif
#ifdef ROWS_LATER
		sc = com;
#endif
#if ASYNC && !defined(NO_FLUSH)
		/* Flush, unless no asynchronous commit has begun since all were durable. */
		atomic {
			if
			:: known && abegun == kbegun
			:: else -> durable = durable | com; dseq = seq; known = (abegun == ae); kbegun = abegun
			fi };
#endif
		/* The limit of the pass, and the stragglers after it. */
		atomic {
			lim = M; strag = 0; t = 0;
			do
			:: t < NT ->
				if
				:: (Rm & B(t)) && !(se & B(t)) && Rlo[t] <= M ->
					strag = strag | B(t);
#ifdef OLD_LIMIT
					if :: Rlo[t] - 1 < lim -> lim = Rlo[t] - 1 :: else fi
#else
					if :: !(Rold & B(t)) && Rlo[t] - 1 < lim -> lim = Rlo[t] - 1 :: else fi
#endif
				:: else
				fi;
				t++
			:: else -> break
			od;
#ifndef NO_CLAMP
			if :: lim < P -> lim = P :: else fi;
#endif
			nK = K & ~se;
			t = 0;
			do
			:: t < NT ->
				if
				:: (strag & B(t)) && Rlo[t] <= lim && MAY_NOTE ->
					nK = nK | B(t);
#ifdef WINDOW_END
					if :: !(K & B(t)) -> from[t] = lim :: else fi
#else
					if :: !(K & B(t)) -> from[t] = P + 1 :: else fi
#endif
				:: else
				fi;
				t++
			:: else -> break
			od;
			t = 0 };
#ifdef PERSIST_FIRST
		atomic { pP = lim; pK = nK; pfrom[0] = from[0]; pfrom[1] = from[1]; pfrom[2] = from[2]; dseq = seq; durable = durable | com };
#endif
#ifdef RANGE_FIRST
		r = P + 1;
		do :: atomic { r <= lim -> if :: own[r] && (sc & B(own[r] - 1)) -> deliver(r) :: else fi; r++ } :: atomic { r > lim -> break } od;
		r = 1;
		do :: atomic { r <= P -> if :: own[r] && (sc & K & B(own[r] - 1)) -> deliver(r) :: else fi; r++ } :: atomic { r > P -> break } od;
#else
		/* In the order of positions: up to P of ended stragglers, beyond it all that is visible. */
		atomic { r = 1;
			do
			:: r <= lim && !stop ->
				if
				:: own[r] && (sc & B(own[r] - 1)) && (r > P || ((K & B(own[r] - 1)) && IN_WINDOW)) ->
					deliver(r);
#if CHUNK
					if
					:: true
					:: r > P -> lim = r; stop = 1
					:: r <= P -> lim = P; stop = 1;
						nK = nK | K; ADVANCE(0); ADVANCE(1); ADVANCE(2)
					fi;
#endif
					r++;
#if NKILL
					if :: true :: nkill < NKILL -> nkill++; goto start fi;
#endif
#if NCRASH
					if :: true :: ncrash < NCRASH -> goto hang fi;
#endif
					skip
				:: else -> r++
				fi
			:: else -> break
			od };
#endif
		/* What is visible and was left behind waits for a young straggler. */
		atomic { r = 1;
			do
			:: r <= M ->
				if
				:: own[r] && (sc & B(own[r] - 1)) && dl[r] == 0 && !stop ->
					assert(((strag & ~Rold & B(0)) && Rlo[0] <= r) || ((strag & ~Rold & B(1)) && Rlo[1] <= r) || ((strag & ~Rold & B(2)) && Rlo[2] <= r))
				:: else
				fi;
				r++
			:: else -> break
			od; r = 0 };
		/* Write the pair down, in one transaction, which flushes what committed before. */
		atomic {
			P = lim; K = nK;
			if :: !(K & B(0)) -> from[0] = 0 :: else fi;
			if :: !(K & B(1)) -> from[1] = 0 :: else fi;
			if :: !(K & B(2)) -> from[2] = 0 :: else fi;
			pP = P;
#ifndef NO_STRAGGLERS
			pK = K; pfrom[0] = from[0]; pfrom[1] = from[1]; pfrom[2] = from[2];
#endif
			dseq = seq; durable = durable | com;
			lim = 0; Rm = 0; Rold = 0; se = 0; sc = 0; nK = 0; strag = 0; ae = 0; Rlo[0] = 0; Rlo[1] = 0; Rlo[2] = 0 };
#ifdef ONESTEP
		};
#endif
		if
		:: atomic { stop -> stop = 0; M = 0 }
		:: atomic { !stop -> armed = 1 };
			if
#ifdef NO_SECOND_LOOK
			:: M = 0;
#else
			:: atomic { chg -> armed = 0; M = 0 }
			:: atomic { !chg -> M = 0 };
#endif
end:				if
				:: atomic { latch -> armed = 0 }
#if NKILL
				:: atomic { nkill < NKILL -> nkill++; armed = 0; goto start }
#endif
				fi
			fi
		fi
	od
#if NCRASH
hang:	atomic { ZERO; rk -> skip }
#endif
  } unless { atomic { rk -> goto start } }
}

/* When nothing can move any more, every committed row was delivered. */
proctype Quiet()
{
	byte r;
end:	atomic { timeout -> r = 1;
		do
		:: r <= MAXID ->
			if :: own[r] && (com & B(own[r] - 1)) -> assert(dl[r] > 0) :: else fi;
			r++
		:: else -> break
		od; r = 0 }
}

init { atomic {
	run Relay();
#if N0 > 0
	run Enqueuer(0, N0);
#endif
#if N1 > 0
	run Enqueuer(1, N1);
#endif
#if N2 > 0
	run Enqueuer(2, N2);
#endif
	run Clock();
#if NCRASH
	run Crash();
#endif
#if TRUNC
	run Truncater();
#endif
	run Quiet() } }
