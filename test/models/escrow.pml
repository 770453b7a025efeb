/*
 * Escrow: the available quantity of one item in shared memory, over a log that
 * is a sum (root) and rows.
 *
 * Two stock transactions reserve, add, settle lapsed reservations, set a
 * savepoint and roll back to it, fail while loading, commit and abort.  Beside
 * them are external DML on the log, a compaction, an eviction and a crash
 * of the server.
 *
 * Checked: what is committed never falls below zero, and a counter that nobody
 * has pinned equals the log.
 *
 * Bounds: NTX transactions of each process, NOPS steps in each, INIT units,
 * HOLDS lapsed reservations of one unit, NF foreign transactions, NC
 * compactions, NE evictions, NCRASH crashes.
 *
 * Wrong variants:
 *   LOCK_LATE          the lock of the log is taken after the units
 *   UNLOCK_FIRST       the lock of the log goes before the end is settled
 *   FOREIGN_DML        a foreign change drops the counter, without the lock
 *   FOREIGN_COMMIT     a foreign commit drops the counter, without the lock
 *   FOREIGN_UNLOCK     the foreign lock goes before the counter is dropped
 *   SNAPSHOT_EARLY     the snapshot of a load is older than LOADING
 *   TWO_SNAPSHOTS      a load reads root and rows with a snapshot each
 *   READER_LOADS       a reader publishes what it has loaded, without the lock
 *   UNPIN_FIRST        the pin goes before the end is settled
 *   SETTLE_EARLY       a commit is settled before it is visible
 *   EVICT_PINNED       a pinned counter is evicted
 *   ADD_AT_ONCE        an addition is shared before its commit
 *   ADDER_UNPINNED     a transaction that only adds has no pin
 *   NOTE_LATE          an error can come between taking units and noting them
 *   SAVEPOINT_UNPINS   a rollback to a savepoint unpins what the levels above
 *                      have touched
 *   SAVEPOINT_UNLOCKS  the lock that a savepoint took goes before its pin
 */
#ifndef NTX
#define NTX 2
#endif
#ifndef NOPS
#define NOPS 2
#endif
#ifndef INIT
#define INIT 2
#endif
#ifndef NF
#define NF 1
#endif
#ifndef NC
#define NC 1
#endif
#ifndef NE
#define NE 2
#endif
#ifndef NCRASH
#define NCRASH 1
#endif
#ifndef HOLDS
#define HOLDS 1
#endif
#define MISSING 0
#define LOADING 1
#define READY 2
#define NP 4

/* On disk, as committed.  A lapsed reservation in hfree is locked by nobody. */
short root = INIT; short rows = 0; byte hfree = HOLDS;
/* In shared memory.  stale: dropped while somebody had it pinned. */
byte est = MISSING; byte pins = 0; short avail = 0; bit stale = 0;
/* The lock of the log: RowExclusiveLock and ShareRowExclusiveLock. */
byte rl = 0; bit xl = 0;
/* For the assertions: units that open transactions have taken. */
short opent = 0;
/* Transactions whose commit is visible and not settled yet. */
byte lag = 0;
byte done = 0; bit crash[NP];

#define CHECK_LOG assert(root + rows >= 0)

/* A counter at rest is the sum of the log. */
inline quiet() {
	if :: pins == 0 && est == READY && !stale && !lag -> assert(avail == root + rows) :: else fi
}

#define LOCK if :: !haveL -> atomic { (!xl) -> rl++; haveL = 1 } :: else fi
#define UNLOCK atomic { if :: haveL -> rl--; haveL = 0 :: else fi }
#define FORGET_SAVEPOINT insv = 0; s_taken = 0; s_pend = 0; s_delta = 0; s_nh = 0; s_pinned = 0; s_haveL = 0
#define UNPIN pins--; pinned = 0; if :: stale && pins == 0 -> est = MISSING; stale = 0; avail = 0 :: else fi

proctype Toucher(byte me) {
	short taken = 0, pend = 0, delta = 0, use = 0, base = 0, upd = 0;
	byte q = 0; byte nh = 0; byte n = NTX; byte ops = 0;
	bit pinned = 0; bit haveL = 0; bit loader = 0; bit vis = 0;
	bit sv = 0; bit insv = 0;	/* may set a savepoint; has set it */
	short s_taken = 0, s_pend = 0, s_delta = 0; byte s_nh = 0; bit s_pinned = 0; bit s_haveL = 0;

NEXT:
 {
	do
	:: n == 0 -> goto END
	:: n > 0 -> atomic { n--; ops = NOPS; sv = 1; goto OP }
OP:		atomic {
			if
			:: ops > 0 -> ops--; goto TOUCH
			:: ops > 0 && sv && !insv -> sv = 0; insv = 1; s_taken = taken; s_pend = pend;
				s_delta = delta; s_nh = nh; s_pinned = pinned; s_haveL = haveL; goto OP
			:: insv && (s_delta != delta || s_taken != taken || s_nh != nh || s_pinned != pinned) ->
				goto ROLLBACK
			:: goto COMMIT
			:: goto ABORT
			fi };
ROLLBACK:	/*
		 * To the savepoint.  What was taken since is given back.  A pin and a lock
		 * that came after the savepoint go, the pin first.
		 */
		atomic {
			avail = avail + (taken - s_taken); opent = opent - (taken - s_taken);
			hfree = hfree + (nh - s_nh);
			taken = s_taken; pend = s_pend; delta = s_delta; nh = s_nh };
#ifdef SAVEPOINT_UNLOCKS
		if :: haveL && !s_haveL -> atomic { rl--; haveL = 0 } :: else fi;
#endif
#ifdef SAVEPOINT_UNPINS
		if :: pinned -> atomic { UNPIN; quiet() } :: else fi;
#else
		if :: pinned && !s_pinned -> atomic { UNPIN; quiet() } :: else fi;
#endif
		if :: haveL && !s_haveL -> atomic { rl--; haveL = 0 } :: else fi;
		atomic { FORGET_SAVEPOINT; goto OP };
TOUCH:		/* The lock of the log comes first, and stays to the end. */
#ifndef LOCK_LATE
		LOCK;
#endif
#ifdef ADDER_UNPINNED
		if :: goto ADD :: skip fi;
#endif
#ifdef SNAPSHOT_EARLY
		if :: !pinned -> base = root + rows :: else fi;
#endif
		/* Then the pin. */
		atomic {
			if
			:: !pinned -> pinned = 1; pins++;
				if :: est == MISSING -> est = LOADING; loader = 1 :: else fi;
				goto WAIT_READY
			:: pinned -> goto DO
			fi };
WAIT_READY:	/* One session loads, the others wait. */
		if
		:: loader ->
#if defined(SNAPSHOT_EARLY)
			skip;
#elif defined(TWO_SNAPSHOTS)
			base = root; base = base + rows;
#else
			base = root + rows;
#endif
			if
			:: atomic { avail = base; est = READY; loader = 0; base = 0; goto DO }
			:: atomic { est = MISSING; loader = 0; base = 0; goto ABORT }	/* an error */
			fi
		:: atomic { !loader && est != LOADING ->
			if
			:: est == MISSING -> est = LOADING; loader = 1; goto WAIT_READY
			:: else -> goto DO
			fi }
		fi;
DO:		atomic {
			if
			:: q = 1
#if INIT > 1
			:: q = 2
#endif
			:: goto ADD
			fi };
RESERVE:	/* Own additions first, then the common units; take and note in one step. */
		atomic {
			use = (pend < q -> pend : q);
			if
			:: avail >= q - use ->
				avail = avail - (q - use);
#ifndef NOTE_LATE
				taken = taken + (q - use); opent = opent + (q - use); pend = pend - use;
#ifndef LOCK_LATE
				delta = delta - q; q = 0; use = 0; goto OP
#endif
#endif
			:: else -> use = 0; goto SHORT
			fi };
#ifdef NOTE_LATE
		if :: skip :: use = 0; q = 0; goto ABORT fi;
		atomic { taken = taken + (q - use); opent = opent + (q - use); pend = pend - use };
#endif
#ifdef LOCK_LATE
		LOCK;
#endif
		atomic { delta = delta - q; q = 0; use = 0; goto OP };
SHORT:		/* Settle a lapsed reservation, and try again. */
		atomic {
			if
			:: hfree > 0 -> hfree--; nh++; pend++; delta++; goto RESERVE
			:: else -> q = 0; goto OP
			fi };
ADD:
#ifdef LOCK_LATE
		LOCK;
#endif
		atomic { delta++;
#if defined(ADD_AT_ONCE)
			avail++; taken--; opent--;
#elif defined(ADDER_UNPINNED)
			upd++;
#else
			pend++;
#endif
			goto OP };
COMMIT:
#ifdef SETTLE_EARLY
		atomic { if :: pinned -> avail = avail + pend; pins--; pinned = 0 :: else fi; pend = 0 };
#endif
		/* The commit becomes visible, is settled, and the locks go. */
		atomic { rows = rows + delta; opent = opent - taken; CHECK_LOG; nh = 0; delta = 0; taken = 0;
			vis = 1; lag++; FORGET_SAVEPOINT; ops = 0; sv = 0 };
#ifdef UNLOCK_FIRST
		UNLOCK;
#endif
#ifdef ADDER_UNPINNED
		atomic { if :: est == READY -> avail = avail + upd :: else fi; upd = 0 };
#endif
#ifdef UNPIN_FIRST
		if :: pinned -> pins--; atomic { avail = avail + pend; lag--; vis = 0; pinned = 0; pend = 0; quiet() } :: else fi;
#else
		if :: pinned -> atomic { avail = avail + pend; pend = 0; lag--; vis = 0; UNPIN; quiet() } :: else fi;
#endif
		atomic { pend = 0; if :: vis -> lag--; vis = 0 :: else fi; pinned = 0 };
		UNLOCK;
		goto CLEAN;
ABORT:		atomic { delta = 0; hfree = hfree + nh; nh = 0; pend = 0; opent = opent - taken; q = 0; use = 0; upd = 0;
			FORGET_SAVEPOINT; ops = 0; sv = 0 };
#ifdef UNPIN_FIRST
		if :: pinned -> pins--; atomic { avail = avail + taken; taken = 0; pinned = 0 } :: else fi;
#else
		if :: pinned -> atomic { avail = avail + taken; taken = 0; UNPIN; quiet() } :: else fi;
#endif
		atomic { taken = 0; pinned = 0 };
		UNLOCK;
CLEAN:		skip
	od
 }
#if NCRASH
 unless { atomic { crash[me] -> crash[me] = 0; hfree = hfree + nh; taken = 0; pend = 0; delta = 0; nh = 0;
	pinned = 0; haveL = 0; loader = 0; vis = 0; q = 0; use = 0; base = 0; upd = 0; ops = 0; sv = 0;
	FORGET_SAVEPOINT; goto NEXT } }
#endif
 ;
END:
	atomic { done++; crash[me] = 0 }
}

inline drop() {
	if
	:: pins == 0 && est != LOADING -> est = MISSING; avail = 0; stale = 0
	:: else -> stale = 1
	fi
}

/* A restore, logical replication, an owner's UPDATE: it does not oversell by itself. */
proctype Foreign(byte me) {
	byte n = NF; short d = 0; bit haveX = 0;
NEXT:
 {
	do
	:: n == 0 -> goto END
	:: n > 0 -> n--;
#if defined(FOREIGN_DML) || defined(FOREIGN_COMMIT)
		if :: d = 1 :: d = -1 fi;
#ifdef FOREIGN_DML
		atomic { drop() };
#endif
		if
		:: atomic { root + rows - opent + d >= 0 -> rows = rows + d };
#ifdef FOREIGN_COMMIT
			atomic { drop() };
#endif
			d = 0
		:: d = 0
		fi
#else
		/* The lock comes before the first change, and waits for every toucher. */
		atomic { (rl == 0 && !xl) -> xl = 1; haveX = 1 };
		if :: d = 1 :: root + rows >= 1 -> d = -1 fi;
		if
		:: atomic { rows = rows + d; CHECK_LOG; d = 0 };	/* the commit is visible */
#ifdef FOREIGN_UNLOCK
			atomic { xl = 0; haveX = 0 };
			atomic { drop() }
#else
			atomic { assert(pins == 0 && est != LOADING); drop() }
#endif
		:: d = 0						/* rollback */
		fi;
		atomic { if :: haveX -> xl = 0; haveX = 0 :: else fi }
#endif
	od
 }
#if NCRASH
 unless { atomic { crash[me] -> crash[me] = 0; d = 0; haveX = 0; goto NEXT } }
#endif
 ;
END:
	atomic { done++; crash[me] = 0 }
}

/* It takes the lock and no pin: root grows by the rows that it deletes. */
proctype Compactor(byte me) {
	byte n = NC; short c = 0; bit haveL = 0;
NEXT:
 {
	do
	:: n == 0 -> goto END
	:: n > 0 -> n--;
		atomic { (!xl) -> rl++; haveL = 1 };
		c = rows;
		if :: atomic { root = root + c; rows = rows - c; c = 0 } :: c = 0 fi;
		atomic { rl--; haveL = 0 }
	od
 }
#if NCRASH
 unless { atomic { crash[me] -> crash[me] = 0; c = 0; haveL = 0; goto NEXT } }
#endif
 ;
END:
	atomic { done++; crash[me] = 0 }
}

/* Evictions and crashes, and the end. */
proctype World() {
	byte ne = NE; byte nc = NCRASH; byte i = 0;

	do
	:: ne > 0 && est == READY -> ne--;
		atomic {
			if
#ifdef EVICT_PINNED
			:: est == READY -> est = MISSING; avail = 0
#else
			:: est == READY && pins == 0 -> est = MISSING; avail = 0; stale = 0
#endif
			:: else
			fi }
	:: nc > 0 && done < NP -> nc--;
		atomic { est = MISSING; avail = 0; pins = 0; stale = 0; rl = 0; xl = 0; opent = 0; lag = 0;
			i = 0; do :: i < NP -> crash[i] = 1; i++ :: else -> break od; i = 0 }
	:: done == NP -> break
	od;
	assert(root + rows >= 0);
	if :: est == READY && !stale -> assert(avail == root + rows && pins == 0) :: else fi;
	assert(rl == 0 && !xl && lag == 0 && opent == 0)
}

#ifdef READER_LOADS
active proctype Reader() {
	short b = 0;

end:	atomic { est == MISSING -> est = LOADING; pins++ };
	b = root + rows;
	atomic { avail = b; est = READY; pins--; b = 0 }
}
#endif

init { atomic { run Toucher(0); run Toucher(1); run Foreign(2); run Compactor(3); run World() } }
