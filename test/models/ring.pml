/*
 * Claims ring: one key in a ring of three segments, each a heap with a unique
 * index.
 *
 * Two claimers, an owner of an earlier lease, an operator who forgets the key,
 * and a sweeper that switches, migrates, retires and truncates.  Every
 * transaction may roll back at its end, which is also what is left of a crash.
 *
 * The transaction id of process p is p + 2, since each has one transaction at a
 * time; 1 means committed, ABRT means rolled back.  A commit replaces the ids in
 * the rows, and dead versions go unless a scan refers to them.  A look with a
 * dirty snapshot copies the entries of the index first and then visits the
 * versions one by one.  An update in place is not a HOT update: the heap comes
 * first, the entry in the index later.  A lease or a ttl may be over at the
 * moment when somebody looks.  A token is drawn together with its insertion.
 *
 * Checked: a claim that takes effect is the only valid one, no older token
 * changes the key after a newer one, a move meets no conflict, the owner of a
 * valid claim is not refused, and what is to be remembered is there at the end,
 * once, as it was left.
 *
 * Bounds: NCL0, NCL1 claims of the two claimers, NOWN changes by the owner, NCLO
 * changes by each claimer of what it has claimed, NCL2 claims of the third
 * client if there was no lease, NFORGET times that the second claimer forgets
 * the key, NSW steps of the sweeper.
 *
 * Wrong variants:
 *   OWNER_IN_PLACE   an owner updates the row in an old segment in place
 *   RETAKE_IN_PLACE  a claimer that takes a key over does
 *   UNLOCK_EARLY     the ring is unlocked between the look and the insertion
 *   STALE_MAP        the map is not read again under the lock
 *   SWITCH_UNLOCKED  the switch does not wait for those that hold the lock
 *   OLD_STAYS        the row in the old segment is not deleted
 *   INSERT_FIRST     it is deleted after the new row was inserted
 *   OWNER_DIRTY      the owner's row is found with a dirty snapshot
 *   OWNER_SNAPSHOTS  it is found with a snapshot for each segment
 *   RETIRE_BLIND     retiring does not ask whether writers are still open
 *   SCAN_FIRST       retiring looks at the rows before it asks that
 */
#ifndef NG
#define NG 3
#endif
#ifndef NV
#define NV 6
#endif
#define NS (NG*NV)
#ifndef NT
#define NT 6
#endif
#define ABRT 200
#define ENDED 1
#define NP 4			/* claimers 0 and 1, owner 2, sweeper 3 */
#ifndef NCL0
#define NCL0 1
#endif
#ifndef NCL1
#define NCL1 1
#endif
#ifndef NOWN
#define NOWN 2
#endif
#ifndef NSW
#define NSW 5
#endif
#ifndef NCLO
#define NCLO 1
#endif
#ifndef NFORGET
#define NFORGET 0
#endif
#ifndef NCL2
#define NCL2 0
#endif
/* States of a claim: in progress, renewed, final, free for the next claimer. */
#define IP1 1
#define IP2 2
#define DONE 3
#define FAILED 4

/* The versions: used is 1 without and 2 with an entry in the index. */
byte s_used[NS]; byte s_tok[NS]; byte s_st[NS]; byte s_xmin[NS]; byte s_xmax[NS];
int lst[NP];			/* versions that a scan still refers to, a mask */
byte wait4[NP];			/* the transaction that is waited for */
byte writer[NP];			/* the first that put a row in progress, or ENDED */
bit open[NP];			/* has a transaction id */
byte wr[NP];			/* segments that the open transaction has locked, a mask */

/* The state table, its lock, and who may still write to an old segment. */
byte cur=0; byte nlive=1; byte retired=NG;
byte readers=0; bit wlock=0;
byte hold[NG];			/* open when the segment was closed, and still, a mask */

/* For the assertions: what became of each token, and what is being done. */
byte ntok=0; byte tst[NT]; bit tcom[NT]; bit texp[NT*5];
byte pend=0; byte p_tok[NP]; byte p_st[NP]; bit p_claim[NP]; byte done=0;
bit within_bounds=1;

#define BOUND(condition) within_bounds=(condition); assert(within_bounds)
#define BIT(i) (1<<(i))
#define VALID(t) (tcom[t] && tst[t]!=FAILED && !texp[(t)*5+tst[t]])

inline gc() {
  gi=0;
  do
  :: gi<NS ->
     if
     :: s_used[gi] && (s_xmin[gi]==ABRT || s_xmax[gi]==1) &&
        !((lst[0]|lst[1]|lst[2]|lst[3]) & BIT(gi)) ->
           s_used[gi]=0; s_tok[gi]=0; s_st[gi]=0; s_xmin[gi]=0; s_xmax[gi]=0
     :: else
     fi; gi++
  :: else -> break
  od; gi=0
}
inline alloc(g) { ns=(g)*NV; do :: s_used[ns]!=0 -> ns++; BOUND(ns<((g)+1)*NV) :: else -> break od }
inline put(g,t,stt,u) {
  alloc(g); s_used[ns]=u; s_tok[ns]=t; s_st[ns]=stt; s_xmin[ns]=X; s_xmax[ns]=0; wr[me]=wr[me]|BIT(g); open[me]=1 }

inline wake() { gi=0; do :: gi<NP -> if :: wait4[gi]==X -> wait4[gi]=0 :: else fi; if :: writer[gi]==X -> writer[gi]=ENDED :: else fi; gi++ :: else -> break od; gi=0 }

/* No other claim of the key is valid when claim t takes effect: at the write, and at the commit. */
inline check_sole(t) {
  gi=1; do :: gi<NT -> if :: gi!=t -> assert(!VALID(gi)) :: else fi; gi++ :: else -> break od; gi=0 }

/* Nobody has committed a newer claim. */
inline check_newest(t) {
  gi=t+1; do :: gi<NT -> assert(!tcom[gi]); gi++ :: else -> break od; gi=0 }

inline commit() {
  atomic {
   d_step {
    if
    :: p_tok[me] ->
       if
       :: p_claim[me] -> check_sole(p_tok[me]); pend--; tcom[p_tok[me]]=1
       :: else -> check_newest(p_tok[me])
       fi;
       tst[p_tok[me]]=p_st[me]
    :: else
    fi;
    p_tok[me]=0; p_st[me]=0; p_claim[me]=0;
    gi=0;
    do
    :: gi<NS ->
       if :: s_used[gi] && s_xmax[gi]==X -> s_xmax[gi]=1 :: else fi;
       if :: s_used[gi] && s_xmin[gi]==X -> s_xmin[gi]=1 :: else fi; gi++
    :: else -> break
    od;
    open[me]=0; wr[me]=0;
    gi=0; do :: gi<NG -> hold[gi]=hold[gi] & (255-BIT(me)); gi++ :: else -> break od; gi=0;
    wake(); gc(); }
  }
}
inline abort() {
  atomic {
   d_step {
    if :: p_claim[me] -> pend-- :: else fi;
    p_tok[me]=0; p_st[me]=0; p_claim[me]=0;
    gi=0;
    do
    :: gi<NS ->
       if :: s_used[gi] && s_xmax[gi]==X -> s_xmax[gi]=0 :: else fi;
       if :: s_used[gi] && s_xmin[gi]==X -> s_xmin[gi]=ABRT :: else fi; gi++
    :: else -> break
    od;
    open[me]=0; wr[me]=0;
    gi=0; do :: gi<NG -> hold[gi]=hold[gi] & (255-BIT(me)); gi++ :: else -> break od; gi=0;
    wake(); gc(); }
  }
}
/* What a dirty snapshot shows: r is 0 dead, 1 live, 2 in progress because of w. */
inline dirty(v) {
  if
  :: s_used[v]==0 || s_xmin[v]==ABRT -> r=0
  :: s_used[v]!=0 && s_xmin[v]>=2 && s_xmin[v]!=ABRT && s_xmin[v]!=X -> r=2; w=s_xmin[v]
  :: else ->
     if
     :: s_xmax[v]==0 -> r=1
     :: s_xmax[v]==1 || s_xmax[v]==X -> r=0
     :: else -> r=2; w=s_xmax[v]
     fi
  fi }
#define TM_BUSY(v) (s_xmax[v]>=2 && s_xmax[v]!=X)
#define TM_GONE(v) (s_used[v]==0 || s_xmax[v]==1 || s_xmax[v]==X || s_xmin[v]==ABRT)
#define VISIBLE(v) (s_used[v] && (s_xmin[v]==1||s_xmin[v]==X) && s_xmax[v]!=1 && s_xmax[v]!=X)

/* Insertion with a unique index: r is 0 inserted, 1 a conflict, 2 in progress because of w. */
inline uniq_insert(g,t,stt) {
  v=(g)*NV; r=0; gj=0;
  do
  :: v<((g)+1)*NV && r!=2 -> if :: s_used[v]==2 -> dirty(v); if :: r==1 -> gj=1 :: else fi :: else fi; v++
  :: else -> break
  od;
  if :: r!=2 -> r=gj :: else fi; gj=0;
  if :: r==0 -> put(g,t,stt,2) :: else fi; v=0; ns=0 }

#define LOCKSH (!wlock) -> readers++
#define UNLOCKSH readers--

#ifdef STALE_MAP
#define CUR mcur
#define NLIVE mnl
#else
#define CUR cur
#define NLIVE nlive
#endif

/* Let go of the lock, wait for the end of w, and start over. */
inline block() {
  wait4[me]=w; w=0; r=0; lst[me]=0; d_step{gc()}; UNLOCKSH;
  (wait4[me]==0)
}

proctype Client(byte me; byte ltok; byte ncl; byte nown) {
  byte X=0; byte j=0; byte g=0; byte v=0; byte s=0; byte w=0; byte r=0; byte ns=0; byte gi=0; byte gj=0; byte t=0; byte nst=0; byte nfg=0; bit fg=0;
#ifdef STALE_MAP
  byte mcur=0; byte mnl=1;
#endif
  bool own=0;			/* ltok was claimed by the open transaction */
  X=me+2;
  if :: me==1 -> nfg=NFORGET :: else fi;

NEXT:
  if
  :: ltok && nown>0 -> nown--; goto OWNER
  :: ltok -> ltok=0; goto NEXT
  :: !ltok && ncl>0 -> ncl--; goto CLAIM
  :: !ltok && nfg>0 -> nfg--; fg=1; nst=FAILED; goto OSTART
  :: else -> goto END
  fi;

/* A claim: look at the segments, newest first. */
CLAIM:
  atomic { LOCKSH; j=0
#ifdef STALE_MAP
  ; if :: mnl==0 -> mcur=cur; mnl=nlive :: else fi
#endif
  }
GEN:
  if
  :: j<NLIVE ->
     atomic { d_step { g=(CUR+NG-j)%NG;
       v=g*NV; do :: v<(g+1)*NV -> if :: s_used[v]==2 -> lst[me]=lst[me]|BIT(v) :: else fi; v++ :: else -> break od; v=g*NV } }
VISIT:
     atomic {
       do :: v<(g+1)*NV && !(lst[me]&BIT(v)) -> v++ :: else -> break od;
       if
       :: v>=(g+1)*NV -> lst[me]=0; d_step{gc()}; v=0; j++; goto GEN
       :: else
       fi;
       dirty(v);
       if
       :: r==0 -> v++; goto VISIT
       :: (r==2 || (r==1 && writer[me])) && s_xmin[v]==1 && s_st[v]==DONE && !texp[s_tok[v]*5+DONE] ->
          /* A replay does not wait for one that is moving the row. */
          writer[me]=0; v=0; w=0; r=0; lst[me]=0; d_step{gc()}; UNLOCKSH; goto ANSWERED
       :: (r==2 || (r==1 && writer[me])) && !(s_xmin[v]==1 && s_st[v]==DONE && !texp[s_tok[v]*5+DONE]) ->
          if :: !writer[me] -> writer[me]=w :: else fi;
          v=0; w=0; r=0; lst[me]=0; d_step{gc()}; j++; goto GEN
       :: r==1 && !writer[me] -> s=v; v=0; r=0; t=s_tok[s];
          if
          :: s_st[s]!=FAILED && !texp[t*5+s_st[s]] ->
             if
             :: t=0; s=0; lst[me]=0; d_step{gc()}; UNLOCKSH; goto ANSWERED
             :: s_xmin[s]==1 -> texp[t*5+s_st[s]]=1			/* its time is over now */
             fi
          :: else
          fi; t=0
       fi }
     goto RETAKE
  :: else ->
     if
     :: atomic { writer[me]>ENDED -> w=writer[me]; writer[me]=0; block(); goto CLAIM }
     :: atomic { writer[me]==ENDED -> writer[me]=0; UNLOCKSH; goto CLAIM }
     :: !writer[me] -> goto FRESH
     fi
  fi;

ANSWERED:
  goto TXEND0;

RETAKE:	/* The row s in segment g is nobody's any more: take it over, with a lease or without. */
  if :: nst=IP1 :: nst=DONE fi;
#ifdef INSERT_FIRST
  if :: g!=CUR -> goto INSERT :: else fi;
#endif
#ifdef OLD_STAYS
  if :: g!=CUR -> goto INSERT :: else fi;
#endif
  atomic {
    if
    :: TM_GONE(s) -> s=0; g=0; nst=0; lst[me]=0; d_step{gc()}; UNLOCKSH; goto CLAIM
    :: !TM_GONE(s) && TM_BUSY(s) -> w=s_xmax[s]; s=0; g=0; nst=0; block(); goto CLAIM
    :: else
    fi;
    d_step {
      s_xmax[s]=X; wr[me]=wr[me]|BIT(g); open[me]=1;
      if
#ifdef RETAKE_IN_PLACE
      :: 1 ->
#else
      :: g==CUR ->
#endif
         ntok++; BOUND(ntok<NT); t=ntok; assert(pend==0); check_sole(t); pend++; p_tok[me]=t; p_claim[me]=1; p_st[me]=nst;
         put(g,t,nst,1)
      :: else -> ns=NS
      fi }
    if :: ns<NS -> s=0 :: else -> s=0; ns=0; lst[me]=0; d_step{gc()}; goto INSERT fi }
  atomic { s_used[ns]=2; ns=0; g=0; lst[me]=0; d_step{gc()}; UNLOCKSH; goto CLAIMED }

FRESH:
  if :: nst=IP1 :: nst=DONE fi;
INSERT:
#ifdef UNLOCK_EARLY
  UNLOCKSH;
#endif
  atomic {
    d_step { uniq_insert(CUR,ntok+1,nst);
      if
      :: r==0 -> ntok++; BOUND(ntok<NT); t=ntok; assert(pend==0); check_sole(t); pend++; p_tok[me]=t; p_claim[me]=1; p_st[me]=nst
      :: else
      fi };
    if
    :: r==0 ->
#ifdef INSERT_FIRST
       if :: s || g -> goto DELOLD :: else fi;
#endif
       s=0; g=0; lst[me]=0; d_step{gc()};
#ifndef UNLOCK_EARLY
       UNLOCKSH;
#endif
       goto CLAIMED
    :: r==1 -> r=0; nst=0; s=0; g=0; lst[me]=0; d_step{gc()};
#ifndef UNLOCK_EARLY
       UNLOCKSH;
#endif
       goto CLAIM
    :: r==2 ->
       nst=0; s=0; g=0;
#ifdef UNLOCK_EARLY
       readers++;
#endif
       block(); goto CLAIM
    fi }
#ifdef INSERT_FIRST
DELOLD:
  atomic {
    if
    :: TM_GONE(s) || TM_BUSY(s) ->
       s=0; g=0; nst=0; t=0; lst[me]=0; d_step{gc()}; UNLOCKSH; goto DOABORT
    :: else -> s_xmax[s]=X; wr[me]=wr[me]|BIT(g); s=0; g=0; lst[me]=0; d_step{gc()}; UNLOCKSH; goto CLAIMED
    fi }
#endif

CLAIMED:
  if
  :: nst==DONE ->
     if
     :: skip
     :: nown>0 -> nown--; ltok=t; t=0; own=1; goto OWNER	/* the answer, before the commit */
     fi
  :: else
  fi;
COMMITCLAIM:
  if
  :: atomic { commit();  if :: nst==IP1 -> ltok=t :: else -> ltok=0 fi; t=0; nst=0; own=0 }
  :: goto DOABORT
  fi;
  goto NEXT;
DOABORT:
  atomic { abort(); ltok=0; t=0; nst=0; own=0 }
  goto NEXT;

TXEND0:
  if :: open[me] -> if :: commit() :: abort() fi :: else fi;
  goto NEXT;

/* Complete, fail or renew with a token; or forget the key. */
OWNER:
  if
  :: own -> nst=DONE
  :: !own -> nst=DONE
  :: !own -> nst=FAILED
  :: !own -> nst=IP2
  fi;
OSTART:
  atomic { LOCKSH; r=0; s=0
#ifdef STALE_MAP
  ; if :: mnl==0 -> mcur=cur; mnl=nlive :: else fi
#endif
  }
#if defined(OWNER_DIRTY)
  j=0;
OGEN:
  if
  :: j<NLIVE ->
     atomic { d_step { g=(CUR+NG-j)%NG; v=g*NV; do :: v<(g+1)*NV -> if :: s_used[v]==2 -> lst[me]=lst[me]|BIT(v) :: else fi; v++ :: else -> break od; v=g*NV } }
OVISIT:
     atomic {
       do :: v<(g+1)*NV && !(lst[me]&BIT(v)) -> v++ :: else -> break od;
       if :: v>=(g+1)*NV -> lst[me]=0; d_step{gc()}; v=0; j++; goto OGEN :: else fi;
       dirty(v);
       if
       :: r==0 -> v++; goto OVISIT
       :: r==2 -> v=0; block(); goto OSTART
       :: r==1 -> s=v; v=0
       fi }
     j=0
  :: else -> g=0; j=0; r=0
  fi;
#elif defined(OWNER_SNAPSHOTS)
  j=0;
OGEN:
  if
  :: j<NLIVE -> atomic { d_step { g=(CUR+NG-j)%NG; v=g*NV; r=0; do :: v<(g+1)*NV && !r -> if :: VISIBLE(v) -> s=v; r=1 :: else fi; v++ :: else -> break od; v=0; if :: r -> lst[me]=BIT(s) :: else fi };
       if :: r -> j=0 :: else -> j++; goto OGEN fi }
  :: else -> g=0; j=0; r=0
  fi;
#else
  /* One snapshot for all segments. */
  atomic { d_step { j=0; r=0;
     do
     :: j<NLIVE && !r -> g=(CUR+NG-j)%NG; v=g*NV; do :: v<(g+1)*NV && !r -> if :: VISIBLE(v) -> s=v; r=1 :: else fi; v++ :: else -> break od; j++
     :: else -> break
     od; v=0; j=0; if :: r -> lst[me]=BIT(s) :: else -> g=0 fi } }
#endif
  atomic {
    if
    :: fg && (r==0 || s_st[s]==FAILED) ->
       fg=0; r=0; s=0; g=0; lst[me]=0; d_step{gc()}; UNLOCKSH; nst=0; ltok=0; goto OWNEND
    :: fg && r==1 && s_st[s]!=FAILED -> ltok=s_tok[s]
    :: !fg && r==0 ->
       assert(texp[ltok*5+tst[ltok]] || !VALID(ltok));
       UNLOCKSH; nst=0; ltok=0; goto OWNEND
    :: !fg && r==1 && (s_tok[s]!=ltok || s_st[s]==FAILED) ->	/* taken over, or forgotten */
       assert(!VALID(ltok) && !own);
       r=0; s=0; g=0; lst[me]=0; d_step{gc()}; UNLOCKSH; nst=0; ltok=0; goto OWNEND
    :: else
    fi; r=0 }
#ifdef OLD_STAYS
  if :: g!=CUR -> goto OINS :: else fi;
#endif
  atomic {
    if
    :: TM_GONE(s) -> s=0; g=0; lst[me]=0; d_step{gc()}; UNLOCKSH; goto OSTART
    :: !TM_GONE(s) && TM_BUSY(s) -> w=s_xmax[s]; s=0; g=0; block(); goto OSTART
    :: else
    fi;
    d_step { s_xmax[s]=X; wr[me]=wr[me]|BIT(g); open[me]=1; p_tok[me]=ltok; p_st[me]=nst;
      if
#ifdef OWNER_IN_PLACE
      :: 1 ->
#else
      :: g==CUR ->
#endif
         put(g,ltok,nst,1)
      :: else -> ns=NS
      fi };
    lst[me]=0; d_step{gc()};
    if :: ns<NS -> s=0 :: else -> s=0; ns=0; goto OINS fi }
  atomic { s_used[ns]=2; ns=0; g=0; UNLOCKSH; goto ODONE }
OINS:
  atomic {
    d_step { uniq_insert(CUR,ltok,nst) };
#ifdef OLD_STAYS
    s=0; g=0; lst[me]=0; d_step{gc()};
    if
    :: r==0 -> p_tok[me]=ltok; p_st[me]=nst; UNLOCKSH; goto ODONE
    :: r==1 -> r=0; UNLOCKSH; goto OSTART
    :: r==2 -> block(); goto OSTART
    fi
#else
    assert(r==0);
    g=0; UNLOCKSH; goto ODONE
#endif
  }
ODONE:
  if
  :: own -> t=ltok; ltok=0; own=0; nst=DONE; goto COMMITCLAIM
  :: else
  fi;
  if
  :: atomic { commit(); if :: nst==IP2 -> skip :: else -> ltok=0 fi; nst=0; fg=0 }
  :: atomic { abort(); nst=0; if :: fg -> ltok=0; fg=0 :: else fi }
  fi;
  goto NEXT;
OWNEND:
  if :: own -> abort(); own=0 :: !own && open[me] -> abort() :: else fi;
  goto NEXT;
END:
  done++
}

proctype Sweeper(byte me) {
  byte X=0; byte n=NSW; byte og=0; byte v=0; byte s=0; byte r=0; byte w=0; byte ns=0; byte gi=0; byte gj=0;
  X=me+2;
  do
  :: n==0 -> break
  :: n>0 && nlive<NG && retired!=(cur+1)%NG ->	/* switch to the next segment */
     n--;
#ifdef SWITCH_UNLOCKED
     skip;
#else
     atomic { (readers==0) -> wlock=1 };
#endif
     if :: atomic {
            hold[cur]=open[0]|(open[1]<<1)|(open[2]<<2);
            cur=(cur+1)%NG; nlive++; wlock=0 } :: n>0 -> wlock=0	/* the lock timed out */ fi
  :: n>0 && nlive>1 ->			/* migrate one row of the oldest */
     n--;
     atomic { d_step { r=0; og=(cur+NG-(nlive-1))%NG; v=og*NV; do :: v<(og+1)*NV && !r -> if :: VISIBLE(v) && s_st[v]!=FAILED && !texp[s_tok[v]*5+s_st[v]] -> s=v; r=1 :: else fi; v++ :: else -> break od; v=0 };
        if :: r==0 :: else -> r=0; lst[me]=BIT(s) fi };
     if
     :: lst[me]==0 -> skip
     :: else ->
        atomic { (!wlock) -> readers++ };
        atomic {
          if
#ifndef OLD_STAYS
          :: TM_GONE(s) || TM_BUSY(s) -> r=1			/* a later round finds it */
          :: else -> s_xmax[s]=X; open[me]=1; wr[me]=wr[me]|BIT(og)
#else
          :: skip
#endif
          fi }
        atomic {
          if
          :: r==0 -> d_step { uniq_insert(cur,s_tok[s],s_st[s]) };
#ifdef OLD_STAYS
             r=0;
#else
             assert(r==0)
#endif
          :: else -> r=0
          fi;
          s=0; lst[me]=0; d_step{gc()}; readers-- };
        if :: commit() :: abort() fi
     fi
  /*
   * Retire the oldest: nobody is open any more that could have written there when
   * it was closed; a scan with a later snapshot finds nothing that is needed; out
   * of the map.
   */
  :: n>0 && nlive>1 && retired==NG ->
     n--; og=(cur+NG-(nlive-1))%NG;
#ifdef SCAN_FIRST
     atomic { d_step { r=0; v=og*NV; do :: v<(og+1)*NV -> if :: VISIBLE(v) && s_st[v]!=FAILED && !texp[s_tok[v]*5+s_st[v]] -> r=1 :: else fi; v++ :: else -> break od; v=0 } };
     if :: r==0 -> atomic { if :: hold[og] -> r=1 :: else fi } :: else fi;
#else
#ifdef RETIRE_BLIND
     r=0;
#else
     atomic { r=0; if :: hold[og] -> r=1 :: else fi };
#endif
     if
     :: r==0 -> atomic { d_step { v=og*NV; do :: v<(og+1)*NV -> if :: VISIBLE(v) && s_st[v]!=FAILED && !texp[s_tok[v]*5+s_st[v]] -> r=1 :: else fi; v++ :: else -> break od; v=0 } }
     :: else
     fi;
#endif
     if
     :: r==0 -> atomic { (readers==0 && !wlock) -> wlock=1 }; atomic { retired=og; nlive--; wlock=0; og=0 }
     :: else -> r=0; og=0
     fi
  :: n>0 && retired<NG ->			/* truncate it, which takes its lock */
     n--;
     atomic {
       if
       :: !((wr[0]|wr[1]|wr[2]) & BIT(retired)) ->
          d_step { v=retired*NV; do :: v<(retired+1)*NV -> s_used[v]=0; s_tok[v]=0; s_st[v]=0; s_xmin[v]=0; s_xmax[v]=0; v++ :: else -> break od; v=0; retired=NG }
       :: else
       fi }
  :: n>0 -> n--
  od;
  done++
}

init {
  byte gi=0; byte n=0; byte c=0;
  atomic {
    /* The past of the key, in the first segment. */
    if
    :: skip
    :: ntok=1; tcom[1]=1; tst[1]=DONE; s_used[0]=2; s_tok[0]=1; s_st[0]=DONE; s_xmin[0]=1
    :: ntok=1; tcom[1]=1; tst[1]=FAILED; s_used[0]=2; s_tok[0]=1; s_st[0]=FAILED; s_xmin[0]=1
    :: ntok=1; tcom[1]=1; tst[1]=IP1; s_used[0]=2; s_tok[0]=1; s_st[0]=IP1; s_xmin[0]=1
    fi;
    run Client(0,0,NCL0,NCLO);
    run Client(1,0,NCL1,NCLO);
    if :: tst[1]==IP1 -> run Client(2,1,0,NOWN) :: else -> run Client(2,0,NCL2,NCLO) fi;
    run Sweeper(3)
  }
  (done==4);
  /* What is to be remembered is there, once, as it was left. */
  atomic {
    n=1;
    do
    :: n<NT ->
       if
       :: VALID(n) ->
          c=0; gi=0;
          do
          :: gi<NS ->
             if :: s_used[gi] && s_xmin[gi]==1 && s_xmax[gi]==0 && ((cur+NG-gi/NV)%NG)<nlive && s_tok[gi]==n && s_st[gi]==tst[n] -> c++ :: else fi;
             gi++
          :: else -> break
          od;
#ifdef OLD_STAYS
          assert(c>=1)
#else
          assert(c==1)
#endif
       :: else
       fi; n++
    :: else -> break
    od }
}
