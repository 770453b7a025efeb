/*
 * The durable head of a relay: one pair that all partitions share which are
 * caught up, so that reading on writes one row, however many partitions there
 * are.
 *
 * A pair is a position and the stragglers that were open when it was passed;
 * outbox.pml describes it, and how a read makes the next one.  Durable are a
 * row for the head of each relay, with a pair, and a row for each partition,
 * with a pair of its own and the name of a head, or none.  The effective pair
 * of a partition is that of the head it names, if that has the higher position,
 * and else its own.
 *
 * In memory, a relay reads from its head.  What a partition of it matches goes
 * to it as a page, with the pairs before and after.  A partition is attached if
 * the head reads for it, and otherwise it lags and reads from a pair of its own.
 * A row may name the head only while its partition is attached and has no page:
 * the head's row speaks for all rows that name it, and those that cannot follow
 * leave before it moves.
 *
 * There is one process.  Each transaction, and each stretch of a relay between
 * two transactions, is one step, and the steps mix in any order.  Their names:
 * start, take_lock, head_pass, lagging_pass, attach, lag, give_back, answer,
 * settle, attach_row, leave_rows, detach_rows, write_head, reload, release,
 * kill, crash, replay, unsubscribe, truncate.
 *
 * Checked: only committed rows are delivered.  None is delivered again when its
 * delivery is durable, and none twice unless memory was lost in between.  When
 * all is read and settled, each committed row that a partition matches was
 * delivered or deferred, since its last replay.  So was each row of a segment
 * that is truncated, and when nobody needs a segment it can be truncated.
 *
 * Bounds: N positions (4 at the most); R0, R1, R2 the rows of each transaction,
 * a bit for each position; NX partitions (2), M0, M1 the rows that they match;
 * NR relays (2); NP pages of a partition (2); NCRASH crashes, NKILL kills of a
 * relay, NRELEASE released locks, NREPLAY replays, NGIVE pages given back, NUNSUB
 * subscriptions dropped; FAILS the rows that the endpoint may refuse, which are
 * deferred; SEGMENT its last position (0: nothing is truncated).  A crash loses
 * the last transaction of the relays, or none; with LOSE_MORE any number.  To
 * search less, WHOLE reads to the end in each pass, and STEADY lets a partition
 * lag only if it has no room.
 *
 * What is done in another way than by the main line, and is as good:
 *   DETACH_FIRST       rows are detached in a transaction before the head's
 *   DETACH_BEFORE      a row is detached with the pair in memory before its
 *                      first page, not with its effective pair
 *   LEAVE_FIRST        a relay that starts makes the rows leave which name its
 *                      head and which it does not serve, in a step of its own
 *                      before it writes the head, not with the first head
 *   LEAVE_THEN_LOAD    a relay that takes over a partition takes the lock, then
 *                      makes the row leave the other head, then reads it, in
 *                      three steps
 *   TAKE_OVER_OWN      and reads from the own pair: all since is read again
 *
 * Wrong variants:
 *   NO_DETACH          the head moves, and rows stay that cannot follow
 *   DETACH_AFTER       a row is detached with the pair after its first page
 *   PASS_BETWEEN       with DETACH_FIRST: there is a pass between the two
 *   ATTACH_PAGES       a row is attached by a settling that leaves pages
 *   ATTACH_LAGGING     a row is attached while its partition lags
 *   NO_LEAVE           a head moves although it has not served since its start
 *                      all that name it
 *   RELEASE_ATTACHED   a lock is released while the row names the head
 *   HEAD_FIRST         the head's row is durable before the detached rows
 *   ATTACH_POSITION    a partition is attached where only the position is equal
 *   ATTACH_SHORT       a partition is attached one position before the head
 *   ATTACH_ANY_FROM    a partition is attached although a read was cut among the
 *                      rows of stragglers
 *   LOAD_ATTACHED      a partition is attached if its row names the head
 *   GIVE_BACK_AFTER    a page is given back, and the pair after it kept
 *   SETTLE_BLIND       settling does not compare the row
 *   SETTLE_POSITION    settling compares the position only
 *   REPLAY_ATTACHED    a replay leaves the name of the head
 *   REPLAY_UNSEEN      a relay does not see a replay until it settles
 *   REPLAY_OWN         a replay keeps the stragglers of the own pair
 *   TRUNCATE_OWN       truncation looks at own pairs: the log is held
 *   NO_ATTACH_ROW      the row of an attached partition is not attached before
 *                      something is settled: the log is held
 *   TRUNCATE_HEADS     truncation looks at heads, not at who follows them
 *   TRUNCATE_POSITION  truncation does not look at stragglers
 *   TRUNCATE_LAZY      truncation does not flush what it relies on
 */
#ifndef N
#define N 3
#endif
#ifndef R0
#define R0 5
#define R1 2
#define R2 0
#endif
#ifndef NX
#define NX 1
#endif
#ifndef M0
#define M0 15
#endif
#ifndef M1
#define M1 1
#endif
#ifndef NR
#define NR 1
#endif
#ifndef NP
#define NP 1
#endif
#ifndef NCRASH
#define NCRASH 0
#endif
#ifndef NKILL
#define NKILL 0
#endif
#ifndef NRELEASE
#define NRELEASE 0
#endif
#ifndef NREPLAY
#define NREPLAY 0
#endif
#ifndef NGIVE
#define NGIVE 0
#endif
#ifndef NUNSUB
#define NUNSUB 0
#endif
#ifndef FAILS
#define FAILS 0
#endif
#ifndef SEGMENT
#define SEGMENT 0
#endif

/* Sets of positions, of transactions and of partitions are bit masks. */
#define B(n) (1<<(n))
#define UP_TO(p) ((1<<(p))-1)
#define ALL ((R0>0)+2*(R1>0)+4*(R2>0))
#define ROWS_OF(k) ((((k)&1)*R0)|((((k)>>1)&1)*R1)|((((k)>>2)&1)*R2))
#define MATCHED(x) (x == 0 -> M0 : M1)

/*
 * A pair: the position, the stragglers, and whether the ended transaction 0 was
 * read up to position 1 by a read that was cut there (its first position that
 * is still to be read).
 */
#define PAIR(p, k, c) ((p)|((k)<<3)|((c)<<6))
#define POS(pair) ((pair)&7)
#define STRAG(pair) (((pair)>>3)&7)
#define CUT(pair) ((pair)>>6)
#define AT_END PAIR(N, 0, 0)

/* The database. */
byte highest;			/* positions that are taken */
byte open = ALL, com;		/* transactions: not ended; committed */
byte head[3];			/* the pair of each head: 1 and 2 */
byte own[2], names[2];		/* a partition's row: own pair; head, 0: none */
byte deferred[2];		/* rows to be sent again later */
byte unsub;			/* partitions without a subscription */
bit gone;			/* the segment is truncated */
/* What of it would survive a crash.  Commits of producers are flushed. */
byte dhead[3], down[2], dnames[2], ddeferred[2], dsettled[2];

/* The memory of the relays. */
bit alive[3];
byte at[3];			/* the head as read */
bit swept[3];			/* what it does not serve has left its head */
bit writing[3];			/* rows are detached, the head is to be written */
/* A partition: which relay has its lock, and what that relay knows. */
byte holder[2];
bit loaded[2], attached[2];
byte lagging[2];		/* its pair, if it is not attached */
byte saw[2], saw_head[2];	/* position and head of the row, as last written */
byte pages[2];
byte before[4], after[4];	/* page i of partition x is at 2*x+i */
byte out[4];			/* rows without an answer */
byte sent[4], refused[4];	/* answers that are not settled */

/* For the assertions. */
byte delivered[2];		/* rows, since their last replay */
byte settled[2];		/* whose delivery is written down */
byte again[2];			/* may be sent again, since memory was lost */
byte ncrash, nkill, nrelease, nreplay, ngive;
/* The partition and the relay of a step, and its variables; 0 between steps. */
byte x, r, from, lim, rows, to, i, e, pair; bit cut;
#define ZERO x = 0; r = 0; from = 0; lim = 0; rows = 0; to = 0; i = 0; e = 0; pair = 0; cut = 0

#define SUBSCRIBED(x) (!(unsub & B(x)))
#define EFFECTIVE(x) ((names[x] > 0 && POS(head[names[x]]) > POS(own[x])) -> head[names[x]] : own[x])
#define FOLLOWS(x) (attached[x] && pages[x] == 0)
#define VISIBLE (ROWS_OF(com) & ~(gone*UP_TO(SEGMENT)))
#define UNCHANGED(x) (POS(own[x]) == saw[x] && names[x] == saw_head[x])

#ifdef LEAVE_THEN_LOAD
#define LOADED(x) loaded[x]
#else
#define LOADED(x) true
#endif
#ifdef PASS_BETWEEN
#define FREE(r) alive[r]
#else
#define FREE(r) (alive[r] && !writing[r])
#endif
#define SERVED(x) (holder[x] > 0 && FREE(holder[x]) && LOADED(x))

/*
 * Transactions of relays need not be flushed: a crash may lose the last ones,
 * but no earlier one than it keeps.
 */
inline flush()
{
#if NCRASH
	dhead[1] = head[1]; dhead[2] = head[2];
	down[0] = own[0]; down[1] = own[1]; dnames[0] = names[0]; dnames[1] = names[1];
	ddeferred[0] = deferred[0]; ddeferred[1] = deferred[1];
	dsettled[0] = settled[0]; dsettled[1] = settled[1]
#else
	skip
#endif
}

inline begin_transaction()
{
#ifdef LOSE_MORE
	if :: true -> flush() :: true fi
#else
	flush()
#endif
}

inline drop_page()		/* the first one */
{
	before[2*x] = before[2*x+1]; after[2*x] = after[2*x+1]; out[2*x] = out[2*x+1];
	sent[2*x] = sent[2*x+1]; refused[2*x] = refused[2*x+1];
	before[2*x+1] = 0; after[2*x+1] = 0; out[2*x+1] = 0; sent[2*x+1] = 0; refused[2*x+1] = 0;
	pages[x]--
}

/* Memory of a partition is lost: what was not settled may be sent again. */
inline forget()
{
	again[x] = again[x] | (delivered[x] & ~settled[x]);
	do :: pages[x] > 0 -> drop_page() :: else -> break od;
	loaded[x] = 0; attached[x] = 0; lagging[x] = 0; saw[x] = 0; saw_head[x] = 0
}

inline remember_row() { saw[x] = POS(own[x]); saw_head[x] = names[x] }

/* The row stops to name a head, and keeps its effective pair. */
inline leave()
{
#ifndef TAKE_OVER_OWN
	own[x] = EFFECTIVE(x);
#endif
	names[x] = 0
}

/* The row of a partition whose lock relay r has.  It lags. */
inline load()
{
#ifndef LEAVE_THEN_LOAD
	if
	:: names[x] > 0 && names[x] != r -> begin_transaction(); leave()
	:: else
	fi;
#endif
	lagging[x] = EFFECTIVE(x);
#ifdef LOAD_ATTACHED
	if :: names[x] == r -> attached[x] = 1; lagging[x] = 0 :: else fi;
#endif
	loaded[x] = 1;
	remember_row()
}

inline take_lock()
{
	holder[x] = r;
#ifndef LEAVE_THEN_LOAD
	load()
#endif
}

inline reload()
{
	r = holder[x];
	forget();
#ifndef LEAVE_THEN_LOAD
	load()
#endif
}

inline start() { alive[r] = 1; at[r] = head[r] }

/*
 * Reads from a pair: rows and the pair after them.  A read may stop anywhere,
 * as a chunk is full or a young straggler limits it: after position 1 of the
 * ended transaction 0, or in the range.
 */
inline read_from()
{
	lim = POS(from);
	if
	:: (STRAG(from) & ~open & 1) && !CUT(from) && POS(from) > 0 -> cut = 1
	:: true ->
		do
		:: lim < highest -> lim++
#ifdef WHOLE
		:: lim == highest -> break
#else
		:: break
#endif
		od
	fi;
	if
	:: cut ->
		rows = VISIBLE & 1;
		to = PAIR(POS(from), STRAG(from), 1)
	:: else ->
		rows = VISIBLE & ((ROWS_OF(STRAG(from) & ~open) & UP_TO(POS(from)) & ~CUT(from)) | (UP_TO(lim) & ~UP_TO(POS(from))));
		if :: (open & 1) && (R0 & UP_TO(lim)) -> to = to | 1 :: else fi;
		if :: (open & 2) && (R1 & UP_TO(lim)) -> to = to | 2 :: else fi;
		if :: (open & 4) && (R2 & UP_TO(lim)) -> to = to | 4 :: else fi;
		to = PAIR(lim, to, 0)
	fi
}

inline add_page()
{
	before[2*x+pages[x]] = from; after[2*x+pages[x]] = to; out[2*x+pages[x]] = rows & MATCHED(x);
	pages[x]++
}

/* A partition without room lags, from the pair before this page. */
inline head_pass()
{
	from = at[r];
	read_from();
	at[r] = to;
	do
	:: x < NX ->
		if
		:: holder[x] == r && attached[x] && (rows & MATCHED(x)) ->
			if
			:: pages[x] < NP -> add_page()
			:: else -> attached[x] = 0; lagging[x] = from
			fi
		:: else
		fi;
		x++
	:: else -> break
	od
}

inline lagging_pass()
{
	from = lagging[x];
	read_from();
	if :: rows & MATCHED(x) -> add_page() :: else fi;
	lagging[x] = to
}

#if defined(ATTACH_POSITION)
#define REACHED(pair, h) (POS(pair) == POS(h))
#elif defined(ATTACH_ANY_FROM)
#define REACHED(pair, h) (POS(pair) == POS(h) && STRAG(pair) == STRAG(h))
#elif defined(ATTACH_SHORT)
#define REACHED(pair, h) (STRAG(pair) == STRAG(h) && CUT(pair) == CUT(h) && POS(pair) + 1 >= POS(h))
#else
#define REACHED(pair, h) ((pair) == (h))
#endif

inline attach() { attached[x] = 1; lagging[x] = 0 }

/* It is paused, its breaker opens, or it is altered. */
inline lag() { attached[x] = 0; lagging[x] = at[holder[x]] }

/* The last page was not sent; the partition lags from the pair before it. */
inline give_back()
{
	ngive++; pages[x]--; i = 2*x + pages[x];
	attached[x] = 0;
#ifdef GIVE_BACK_AFTER
	lagging[x] = after[i];
#else
	lagging[x] = before[i];
#endif
	before[i] = 0; after[i] = 0; out[i] = 0
}

/* The endpoint accepts a row, or refuses it. */
inline answer()
{
	if :: out[2*x] > 0 -> i = 2*x :: out[2*x+1] > 0 -> i = 2*x + 1 fi;
	do :: out[i] >> (e+1) -> e++ :: out[i] & B(e) -> break od;
	out[i] = out[i] & ~B(e);
	if
	:: sent[i] = sent[i] | B(e);
		assert(ROWS_OF(com) & B(e));
		assert(!(settled[x] & B(e)));
		assert(!(delivered[x] & B(e)) || (again[x] & B(e)));
		delivered[x] = delivered[x] | B(e); again[x] = again[x] & ~B(e)
	:: (FAILS & B(e)) -> refused[i] = refused[i] | B(e)
	fi
}

#if defined(SETTLE_BLIND)
#define MAY_SETTLE(x) true
#elif defined(SETTLE_POSITION)
#define MAY_SETTLE(x) (POS(own[x]) == saw[x])
#else
#define MAY_SETTLE(x) UNCHANGED(x)
#endif
#if defined(ATTACH_PAGES)
#define MAY_NAME(x) attached[x]
#elif defined(ATTACH_LAGGING)
#define MAY_NAME(x) (pages[x] == 0)
#else
#define MAY_NAME(x) FOLLOWS(x)
#endif

/* The answered pages at the front are written down, in one transaction. */
inline settle()
{
	r = holder[x];
	if
	:: !SUBSCRIBED(x) -> forget(); holder[x] = 0
	:: SUBSCRIBED(x) && !MAY_SETTLE(x) -> reload()
	:: SUBSCRIBED(x) && MAY_SETTLE(x) ->
		begin_transaction();
		do
		:: pages[x] > 0 && out[2*x] == 0 ->
			own[x] = after[2*x];
			deferred[x] = deferred[x] | refused[2*x];
			settled[x] = settled[x] | sent[2*x];
			drop_page()
		:: else -> break
		od;
		names[x] = (MAY_NAME(x) -> r : 0);
		remember_row()
	fi
}

/* A partition that is attached, with nothing to settle: once. */
inline attach_row()
{
	r = holder[x];
	begin_transaction();
	own[x] = at[r]; names[x] = r;
	remember_row()
}

/* The row stops to name the head of r; to be called before the head moves. */
inline detach_row()
{
#if defined(DETACH_BEFORE)
	if
	:: holder[x] == r && LOADED(x) && pages[x] > 0 -> own[x] = before[2*x]
	:: holder[x] == r && LOADED(x) && pages[x] == 0 && !attached[x] -> own[x] = lagging[x]
	:: holder[x] == r && LOADED(x) && FOLLOWS(x) -> own[x] = at[r]
	:: else -> own[x] = EFFECTIVE(x)
	fi;
#elif defined(DETACH_AFTER)
	if
	:: holder[x] == r && pages[x] > 0 -> own[x] = after[2*x]
	:: else -> own[x] = EFFECTIVE(x)
	fi;
#else
	own[x] = EFFECTIVE(x);
#endif
	names[x] = 0;
	if :: holder[x] == r && LOADED(x) -> remember_row() :: else fi
}

/* What names the head and is not served, from an earlier life of the relay. */
inline leave_rows()
{
	x = 0;
	do
	:: x < NX ->
		if :: names[x] == r && holder[x] != r -> detach_row() :: else fi;
		x++
	:: else -> break
	od;
	swept[r] = 1
}

inline detach_rows()
{
#ifndef NO_DETACH
	x = 0;
	do
	:: x < NX ->
		if :: names[x] == r && holder[x] == r && !FOLLOWS(x) -> detach_row() :: else fi;
		x++
	:: else -> break
	od;
#endif
#if defined(NO_DETACH) || defined(NO_LEAVE)
	swept[r] = 1
#else
	if :: !swept[r] -> leave_rows() :: else fi
#endif
}

inline write_head()
{
	head[r] = at[r];
	writing[r] = 0;
#ifdef HEAD_FIRST
	dhead[r] = at[r];
#endif
	skip
}

inline release()
{
	r = holder[x]; nrelease++;
#ifndef RELEASE_ATTACHED
	if :: names[x] == r -> begin_transaction(); detach_row() :: else fi;
#endif
	forget();
	holder[x] = 0
}

inline stop_relay()
{
	alive[r] = 0; at[r] = 0; swept[r] = 0; writing[r] = 0;
	x = 0;
	do
	:: x < NX -> if :: holder[x] == r -> forget(); holder[x] = 0 :: else fi; x++
	:: else -> break
	od
}

/* The server: open transactions end, but 0 if it has all its rows and is prepared. */
inline crash()
{
	ncrash++;
	if
	:: true
	:: head[1] = dhead[1]; head[2] = dhead[2];
		own[0] = down[0]; own[1] = down[1]; names[0] = dnames[0]; names[1] = dnames[1];
		deferred[0] = ddeferred[0]; deferred[1] = ddeferred[1];
		settled[0] = dsettled[0]; settled[1] = dsettled[1]
	fi;
	flush();
	if
	:: !(R0 & ~UP_TO(highest))
	:: (open & 1) && (R0 & UP_TO(highest)) -> open = open & ~1
	:: else
	fi;
	if :: R1 & UP_TO(highest) -> open = open & ~2 :: else fi;
	if :: R2 & UP_TO(highest) -> open = open & ~4 :: else fi;
	r = 1; stop_relay();
	r = 2; stop_relay()
}

/* From position e on, which the partition has passed. */
inline replay()
{
	do :: e < POS(EFFECTIVE(x)) -> e++ :: e > 0 -> break od;
	if
	:: gone && e <= SEGMENT
	:: else ->
		nreplay++;
		pair = EFFECTIVE(x);
#ifdef REPLAY_OWN
		pair = own[x];
#endif
		own[x] = PAIR(e-1, STRAG(pair), CUT(pair));
#ifndef REPLAY_ATTACHED
		names[x] = 0;
#endif
		delivered[x] = delivered[x] & UP_TO(e-1); settled[x] = settled[x] & UP_TO(e-1);
		again[x] = again[x] & UP_TO(e-1); deferred[x] = deferred[x] & UP_TO(e-1);
		flush()
	fi
}

/* A segment is kept while a pair may need a row of it, or a row may appear. */
#ifdef TRUNCATE_POSITION
#define PAST(pair) (POS(pair) >= SEGMENT)
#else
#define PAST(pair) (POS(pair) >= SEGMENT && !(ROWS_OF(STRAG(pair)) & UP_TO(SEGMENT) & ~CUT(pair)))
#endif
#if defined(TRUNCATE_OWN)
#define NEEDED_FROM(x) own[x]
#elif defined(TRUNCATE_HEADS)
#define NEEDED_FROM(x) (holder[x] > 0 -> head[holder[x]] : own[x])
#else
#define NEEDED_FROM(x) EFFECTIVE(x)
#endif
#define NOT_NEEDED(x) (x >= NX || !SUBSCRIBED(x) || PAST(NEEDED_FROM(x)))
#define TRUNCATABLE (highest >= SEGMENT && !(ROWS_OF(open) & UP_TO(SEGMENT)) && NOT_NEEDED(0) && NOT_NEEDED(1))

inline check_arrived(needed)
{
	x = 0;
	do
	:: x < NX -> assert(!SUBSCRIBED(x) || !(ROWS_OF(com) & (needed) & MATCHED(x) & ~(delivered[x]|deferred[x]))); x++
	:: else -> break
	od
}

inline truncate()
{
	check_arrived(UP_TO(SEGMENT));
	gone = 1;
#ifndef TRUNCATE_LAZY
	flush()
#endif
}

/* All that a partition matches is read, and has its answer. */
#define WAITS(x) (x >= NX || !SUBSCRIBED(x) || (SERVED(x) && pages[x] == 0 && SEEN(x) && (attached[x] -> at[holder[x]] : lagging[x]) == AT_END))
/*
 * Its row can do no more for truncation.  At equal positions the own pair
 * counts, whose stragglers may hold the log until the next position.
 */
#define WRITTEN(x) (x >= NX || !SUBSCRIBED(x) || (FOLLOWS(x) && head[holder[x]] == at[holder[x]] && NAMED(x) && !(POS(own[x]) == N && STRAG(own[x]))))
#ifdef REPLAY_UNSEEN
#define SEEN(x) true
#else
#define SEEN(x) UNCHANGED(x)
#endif
#ifdef NO_ATTACH_ROW
#define NAMED(x) true
#else
#define NAMED(x) (saw_head[x] == holder[x])
#endif

#define EACH_PARTITION(guard, step) :: atomic { guard(0) -> x = 0; step; ZERO } :: atomic { NX > 1 && guard(1) -> x = 1; step; ZERO }
#define EACH_RELAY(guard, step) :: atomic { guard(1) -> r = 1; step; ZERO } :: atomic { NR > 1 && guard(2) -> r = 2; step; ZERO }

#define IS_DOWN(r) (!alive[r])
#define IS_UP(r) FREE(r)
#define BEHIND(r) (FREE(r) && at[r] != head[r])
#define LEFT(r) (FREE(r) && swept[r] && at[r] != head[r])
#define NOT_LEFT(r) (FREE(r) && !swept[r])
#define DETACHED(r) (alive[r] && writing[r])
#define MAY_DIE(r) (alive[r] && nkill < NKILL)
#define UNLOCKED_1(x) (FREE(1) && holder[x] == 0 && SUBSCRIBED(x))
#define UNLOCKED_2(x) (FREE(2) && holder[x] == 0 && SUBSCRIBED(x))
#define NOT_LOADED(x) (holder[x] > 0 && FREE(holder[x]) && !loaded[x])
#define NAMES_OTHER(x) (NOT_LOADED(x) && names[x] > 0 && names[x] != holder[x])
#define NAMES_NO_OTHER(x) (NOT_LOADED(x) && !NAMES_OTHER(x))
#define LAGS(x) (SERVED(x) && !attached[x] && pages[x] < NP)
#define CAUGHT_UP(x) (SERVED(x) && !attached[x] && REACHED(lagging[x], at[holder[x]]))
#define IS_ATTACHED(x) (SERVED(x) && attached[x])
#define LAST_PAGE(x) (2*x + pages[x] - 1)
#define UNSENT(x) (SERVED(x) && pages[x] > 0 && ngive < NGIVE && !sent[LAST_PAGE(x)] && !refused[LAST_PAGE(x)])
#define REQUESTED(x) (out[2*x] || out[2*x+1])
#define ANSWERED(x) (SERVED(x) && pages[x] > 0 && out[2*x] == 0)
#define TO_ATTACH(x) (SERVED(x) && FOLLOWS(x) && saw_head[x] != holder[x] && MAY_SETTLE(x) && SUBSCRIBED(x))
#define CHANGED(x) (SERVED(x) && SUBSCRIBED(x) && !SEEN(x))
#define MAY_RELEASE(x) (SERVED(x) && nrelease < NRELEASE)
#define MAY_REPLAY(x) (nreplay < NREPLAY && SUBSCRIBED(x) && POS(EFFECTIVE(x)) > 0)
#define MAY_UNSUB(x) (!unsub)
#define HAS_ALL(rows) (!((rows) & ~UP_TO(highest)))

active proctype Steps()
{
end:	do
	/* Producers.  A transaction can roll back before it has all its positions. */
	:: atomic { highest < N -> highest++ }
	:: atomic { (open & 1) && HAS_ALL(R0) -> if :: com = com | 1 :: true fi; open = open & ~1; flush() }
	:: atomic { (open & 2) && HAS_ALL(R1) -> if :: com = com | 2 :: true fi; open = open & ~2; flush() }
	:: atomic { (open & 4) && HAS_ALL(R2) -> if :: com = com | 4 :: true fi; open = open & ~4; flush() }
	:: atomic { (open & 1) && (R0 & UP_TO(highest)) -> open = open & ~1 }
	/* Relays. */
	EACH_RELAY(IS_DOWN, start())
	EACH_PARTITION(UNLOCKED_1, r = 1; take_lock())
#if NR > 1
	EACH_PARTITION(UNLOCKED_2, r = 2; take_lock())
#endif
#ifdef LEAVE_THEN_LOAD
	EACH_PARTITION(NAMES_OTHER, begin_transaction(); leave())
	EACH_PARTITION(NAMES_NO_OTHER, r = holder[x]; load())
#endif
	EACH_RELAY(IS_UP, head_pass())
	EACH_PARTITION(LAGS, lagging_pass())
	EACH_PARTITION(CAUGHT_UP, attach())
#ifndef STEADY
	EACH_PARTITION(IS_ATTACHED, lag())
#endif
#if NGIVE
	EACH_PARTITION(UNSENT, give_back())
#endif
	EACH_PARTITION(REQUESTED, answer())
	EACH_PARTITION(ANSWERED, settle())
#ifndef NO_ATTACH_ROW
	EACH_PARTITION(TO_ATTACH, attach_row())
#endif
#ifdef LEAVE_FIRST
	EACH_RELAY(NOT_LEFT, begin_transaction(); leave_rows())
#define MAY_WRITE LEFT
#else
#define MAY_WRITE BEHIND
#endif
#ifdef DETACH_FIRST
	EACH_RELAY(MAY_WRITE, begin_transaction(); detach_rows(); writing[r] = 1)
	EACH_RELAY(DETACHED, begin_transaction(); write_head())
#else
	EACH_RELAY(MAY_WRITE, begin_transaction(); detach_rows(); write_head())
#endif
	EACH_PARTITION(CHANGED, reload())
#if NRELEASE
	EACH_PARTITION(MAY_RELEASE, release())
#endif
	/* What happens to them. */
#if NKILL
	EACH_RELAY(MAY_DIE, nkill++; stop_relay())
#endif
#if NCRASH
	:: atomic { ncrash < NCRASH -> crash(); ZERO }
#endif
#if NREPLAY
	EACH_PARTITION(MAY_REPLAY, replay())
#endif
#if NUNSUB
	EACH_PARTITION(MAY_UNSUB, unsub = B(x); flush())
#endif
#if SEGMENT
	:: atomic { !gone && TRUNCATABLE -> truncate(); ZERO }
#endif
	/* Nothing is left to do: all has arrived, and nothing holds the log. */
	:: atomic { highest == N && open == 0 && WAITS(0) && WAITS(1) ->
		check_arrived(UP_TO(N));
#if SEGMENT
		assert(!(WRITTEN(0) && WRITTEN(1)) || gone || TRUNCATABLE);
#endif
		ZERO }
	od
}
