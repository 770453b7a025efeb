-- Rows of a database with version 0.2.0 of the extension, as its own functions
-- and workers have written them.  They are for its tables, before ALTER EXTENSION
-- UPDATE: the library of a later version does not run these functions any more.
--
-- keys        scope "kept": completed, failed, free again, leased; in an old and the
--             current table of the ring, and a retired one where all have expired
-- events      in all three segments of the log
-- shop        has an event of the key "a" waiting after two failed attempts, two
--             parked behind it, and one without a key waiting
-- dead        has four dead letters
-- lanes       is paused, in three partitions.  Events 10 to 15 were sent; those of
--             transaction 772, which the relay has passed, and 16 to 20 were not
-- later       has two events whose time is to come
-- closed      is disabled, since its endpoint has answered 410
-- stock       cap and hat in the log, kept compacted into two tables of the history;
--             reservation "in part" is confirmed but for two lines, and "in part,
--             cancelled" is cancelled but for two; "lapsed" is over, and nobody has
--             settled it
--
-- Load it with the schema of the extension first in search_path, and with the
-- triggers of stock_log, stock_item and idem_key_* disabled.  The end of it makes
-- times be as long ago as they were, and the database the home of the outbox.
-- Numbers of transactions go up to 801.

DELETE FROM idem_ring;
DELETE FROM outbox_ring;
DELETE FROM stock_ring;

COPY idem_ring (slot, state, generation, opened_at, closed_at, quiet_xid, rest_until) FROM stdin;
0	retired	1	2026-11-22 20:29:50.713885+00	2026-11-22 20:29:51.176118+00	728	\N
1	old	2	2026-11-22 20:29:51.176689+00	2026-11-22 20:29:51.233149+00	739	\N
2	current	3	2026-11-22 20:29:51.233444+00	\N	\N	\N
\.

COPY idem_key_0 (token, expires_at, attempt, state, scope, key, lease_until, request, response) FROM stdin;
1	2026-11-22 20:29:51.061393+00	1	c	kept	gone 1	\N	\N	\N
2	2026-11-22 20:29:51.061701+00	1	c	kept	gone 2	\N	\N	\N
3	2026-11-22 20:29:51.06174+00	1	c	kept	gone 3	\N	\N	\N
4	2026-11-22 20:29:51.06175+00	1	c	kept	gone 4	\N	\N	\N
5	2026-11-22 20:29:51.061758+00	1	c	kept	gone 5	\N	\N	\N
\.

COPY idem_key_1 (token, expires_at, attempt, state, scope, key, lease_until, request, response) FROM stdin;
6	2026-11-23 20:29:51.225593+00	1	c	kept	old 1	\N	\\xad1b9de910513527b407147d7a05569066c1a50cceaba3e118df6b13f49e749c	\N
7	2026-11-23 20:29:51.225776+00	1	c	kept	old 2	\N	\\xff14e14c208d414590558c2e333a73da13828df7df2988dacc7f817e6aa5f995	\N
8	2026-11-23 20:29:51.225792+00	1	c	kept	old 3	\N	\\x6602268483bd7c7f95dcd1d1a3467612ff1724c621560c5f01d1785917886599	\N
9	2026-11-23 20:29:51.225802+00	1	c	kept	old 4	\N	\\x6e9f43813f86baf1879f96ba064cd3b37ff1c9db77c558f05f56a597e46bc62b	\N
10	2026-11-23 20:29:51.225812+00	1	c	kept	old 5	\N	\\xdd56ba6cbd56451c7a7346def88b8fa8b9de2e4c4bcf5e5f6b07dfcfd03ee501	\N
11	2026-11-23 20:29:51.2316+00	1	c	kept	answered	\N	\N	{"order": 17}
12	2026-11-23 20:29:51.232153+00	1	f	kept	forbidden	\N	\N	{"error": "no such card"}
13	2026-11-23 20:29:51.232477+00	1	r	kept	again	\N	\N	{"error": "busy"}
14	2026-11-23 21:29:51.232603+00	1	p	kept	leased long ago	2026-11-22 21:29:51.232603+00	\\x454349e422f05297191ead13e21d3db520e5abef52055e4964b82fb213f593a1	\N
\.

COPY idem_key_2 (token, expires_at, attempt, state, scope, key, lease_until, request, response) FROM stdin;
15	2026-11-23 20:29:51.236534+00	1	c	kept	new 1	\N	\N	\N
16	2026-11-23 20:29:51.236666+00	1	c	kept	new 2	\N	\N	\N
17	2026-11-23 20:29:51.236682+00	1	c	kept	new 3	\N	\N	\N
18	2026-11-23 20:29:51.236693+00	1	c	kept	new 4	\N	\N	\N
19	2026-11-23 20:29:51.236704+00	1	c	kept	new 5	\N	\N	\N
20	2026-11-23 21:29:51.237603+00	1	p	kept	leased	2026-11-22 21:29:51.237603+00	\N	\N
21	2026-11-29 20:29:51.275966+00	1	c	kept	own	\N	\N	\N
\.

COPY outbox_ring (slot, state, generation, opened_at, closed_at, quiet_xid, rest_until, last_position, warned) FROM stdin;
0	old	1	2026-11-22 20:29:50.744716+00	2026-11-22 20:29:51.75722+00	756	\N	8	f
1	old	2	2026-11-22 20:29:51.757778+00	2026-11-22 20:29:57.23679+00	778	\N	29	f
2	current	3	2026-11-22 20:29:57.237388+00	\N	\N	\N	\N	f
\.

COPY outbox_log_0 ("position", xid, created_at, deliver_at, topic, key, type, payload, headers) FROM stdin;
1	750	2026-11-22 20:29:51.34011+00	\N	shop	k	\N	{"n": 1}	\N
2	750	2026-11-22 20:29:51.340271+00	\N	shop	k	\N	{"n": 2}	\N
3	750	2026-11-22 20:29:51.340279+00	\N	shop	k	\N	{"n": 3}	\N
4	751	2026-11-22 20:29:51.343921+00	\N	lanes	k1	\N	{"n": 1}	\N
5	751	2026-11-22 20:29:51.343944+00	\N	lanes	k2	\N	{"n": 2}	\N
6	751	2026-11-22 20:29:51.34395+00	\N	lanes	k3	\N	{"n": 3}	\N
7	751	2026-11-22 20:29:51.343955+00	\N	lanes	k4	\N	{"n": 4}	\N
8	752	2026-11-22 20:29:51.344294+00	\N	closed	\N	\N	{"n": 1}	\N
\.

COPY outbox_log_1 ("position", xid, created_at, deliver_at, topic, key, type, payload, headers) FROM stdin;
9	758	2026-11-22 20:29:51.977784+00	\N	shop	a	order.paid	{"n": 4}	{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
10	760	2026-11-22 20:29:51.982652+00	\N	shop	a	\N	{"n": 5}	\N
11	761	2026-11-22 20:29:51.986783+00	\N	shop.more	a	\N	{"n": 6}	\N
12	762	2026-11-22 20:29:51.986954+00	\N	shop	\N	\N	{"n": 7}	\N
13	763	2026-11-22 20:29:51.98751+00	\N	dead	k1	order.failed	{"n": 1}	\N
14	763	2026-11-22 20:29:51.987524+00	\N	dead	k0	order.failed	{"n": 2}	\N
15	763	2026-11-22 20:29:51.987531+00	\N	dead	k1	order.failed	{"n": 3}	\N
16	763	2026-11-22 20:29:51.987536+00	\N	dead	k0	order.failed	{"n": 4}	\N
17	764	2026-11-22 20:29:51.987833+00	2026-11-22 21:29:51.987622+00	later	l	\N	{"n": 1}	\N
18	765	2026-11-22 20:29:51.987924+00	2026-11-22 22:29:51.987886+00	later	m	\N	{"n": 2}	\N
19	772	2026-11-22 20:29:53.172608+00	\N	lanes	k5	\N	{"n": 5}	\N
20	772	2026-11-22 20:29:53.17274+00	\N	lanes	k6	\N	{"n": 6}	\N
21	772	2026-11-22 20:29:53.172768+00	\N	lanes	k7	\N	{"n": 7}	\N
22	772	2026-11-22 20:29:53.172775+00	\N	lanes	k8	\N	{"n": 8}	\N
23	773	2026-11-22 20:29:53.688226+00	\N	lanes	j10	\N	{"n": 10}	\N
24	773	2026-11-22 20:29:53.688367+00	\N	lanes	j11	\N	{"n": 11}	\N
25	773	2026-11-22 20:29:53.688376+00	\N	lanes	j12	\N	{"n": 12}	\N
26	773	2026-11-22 20:29:53.688383+00	\N	lanes	j13	\N	{"n": 13}	\N
27	773	2026-11-22 20:29:53.688391+00	\N	lanes	j14	\N	{"n": 14}	\N
28	773	2026-11-22 20:29:53.688398+00	\N	lanes	j15	\N	{"n": 15}	\N
29	772	2026-11-22 20:29:57.194877+00	\N	lanes	k1	\N	{"n": 9}	\N
\.

COPY outbox_log_2 ("position", xid, created_at, deliver_at, topic, key, type, payload, headers) FROM stdin;
30	780	2026-11-22 20:29:57.242466+00	\N	lanes	j16	\N	{"n": 16}	\N
31	780	2026-11-22 20:29:57.242661+00	\N	lanes	j17	\N	{"n": 17}	\N
32	780	2026-11-22 20:29:57.242671+00	\N	lanes	j18	\N	{"n": 18}	\N
33	780	2026-11-22 20:29:57.242677+00	\N	lanes	j19	\N	{"n": 19}	\N
34	780	2026-11-22 20:29:57.242684+00	\N	lanes	j20	\N	{"n": 20}	\N
\.

COPY outbox_subscription (id, name, url, topics, secret, old_secret, old_until, headers, format, ordered, max_in_flight, timeout, retry_schedule, partitions, state, reason, failing_since, version, created_at) FROM stdin;
1	shop	http://127.0.0.1:1/switch/shop	{shop,shop.*}	whsec_VGhpcyBpcyB0aGUgb3RoZXIgc2VjcmV0IG9mIGEgdGVzdC4=	whsec_VGhpcyBpcyBubyBzZWNyZXQsIGJ1dCBwYXJ0IG9mIGEgdGVzdC4=	2026-11-29 20:29:51.327815+00	{"X-Shop": "42"}	standard	t	32	00:00:15	{00:00:00,00:00:01,01:00:00}	1	active	\N	\N	2	2026-11-22 20:29:51.31952+00
2	dead	http://127.0.0.1:1/switch/dead	{dead}	whsec_VGhpcyBpcyB0aGUgdGhpcmQgc2VjcmV0IG9mIGEgdGVzdC4=	\N	\N	\N	cloudevents	f	32	00:00:15	{00:00:00}	1	active	\N	\N	1	2026-11-22 20:29:51.32874+00
3	lanes	http://127.0.0.1:1/ok/lanes	{lanes}	whsec_VGhpcyBpcyB0aGUgZm91cnRoIHNlY3JldCBvZiBhIHRlc3QuLg==	\N	\N	\N	standard	t	32	00:00:15	{00:00:00,00:00:05,00:05:00,00:30:00,02:00:00,05:00:00,10:00:00,14:00:00,20:00:00,24:00:00}	3	paused	for the weekend	\N	1	2026-11-22 20:29:51.331101+00
4	later	http://127.0.0.1:1/ok/later	{later}	whsec_VGhpcyBpcyB0aGUgZmlmdGggc2VjcmV0IG9mIGEgdGVzdC4uLg==	\N	\N	\N	standard	t	32	00:00:15	{00:00:00,00:00:05,00:05:00,00:30:00,02:00:00,05:00:00,10:00:00,14:00:00,20:00:00,24:00:00}	1	active	\N	\N	1	2026-11-22 20:29:51.332783+00
5	closed	http://127.0.0.1:1/gone/closed	{closed}	whsec_VGhpcyBpcyB0aGUgc2l4dGggc2VjcmV0IG9mIGEgdGVzdC4uLg==	\N	\N	\N	standard	t	32	00:00:15	{00:00:00,00:00:05,00:05:00,00:30:00,02:00:00,05:00:00,10:00:00,14:00:00,20:00:00,24:00:00}	1	disabled	the endpoint answered 410 Gone	\N	1	2026-11-22 20:29:51.339085+00
\.

COPY outbox_lane (subscription, lane, "position", stragglers, straggler_froms, lost, delivered, rate, moved_at) FROM stdin;
1	0	34	{}	{}	0	3	0.16886243251587174	2026-11-22 20:29:57.243717+00
2	0	34	{}	{}	0	0	0	2026-11-22 20:29:57.244052+00
3	0	28	{772}	{19}	0	4	0.3802037751923235	2026-11-22 20:29:53.703042+00
3	1	28	{772}	{19}	0	4	0.360408945936406	2026-11-22 20:29:53.703213+00
3	2	28	{772}	{19}	0	2	0.180298182432911	2026-11-22 20:29:53.703337+00
4	0	34	{}	{}	0	0	0	2026-11-22 20:29:57.244295+00
5	0	8	{}	{}	0	0	0	2026-11-22 20:29:51.520464+00
\.

COPY outbox_delivery (subscription, "position", lane, state, blocks_key, attempts, due_at, last_at, last_status, last_error, created_at, topic, key, type, payload, headers) FROM stdin;
1	9	0	waiting	t	2	2026-11-22 21:30:02.073397+00	2026-11-22 20:29:53.047398+00	500	answered 500	2026-11-22 20:29:51.977784+00	shop	a	order.paid	{"n": 4}	{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
1	10	0	parked	t	0	\N	\N	\N	\N	2026-11-22 20:29:51.982652+00	shop	a	\N	{"n": 5}	\N
1	11	0	parked	t	0	\N	\N	\N	\N	2026-11-22 20:29:51.986783+00	shop.more	a	\N	{"n": 6}	\N
1	12	0	waiting	f	2	2026-11-22 21:33:04.216059+00	2026-11-22 20:29:53.10706+00	500	answered 500	2026-11-22 20:29:51.986954+00	shop	\N	\N	{"n": 7}	\N
2	13	0	dead	f	1	\N	2026-11-22 20:29:52.006512+00	500	answered 500	2026-11-22 20:29:51.98751+00	dead	k1	order.failed	{"n": 1}	\N
2	14	0	dead	f	1	\N	2026-11-22 20:29:52.007027+00	500	answered 500	2026-11-22 20:29:51.987524+00	dead	k0	order.failed	{"n": 2}	\N
2	15	0	dead	f	1	\N	2026-11-22 20:29:52.007298+00	500	answered 500	2026-11-22 20:29:51.987531+00	dead	k1	order.failed	{"n": 3}	\N
2	16	0	dead	f	1	\N	2026-11-22 20:29:52.007599+00	500	answered 500	2026-11-22 20:29:51.987536+00	dead	k0	order.failed	{"n": 4}	\N
4	17	0	waiting	f	0	2026-11-22 21:29:51.987622+00	\N	\N	\N	2026-11-22 20:29:51.987833+00	later	l	\N	{"n": 1}	\N
4	18	0	waiting	f	0	2026-11-22 22:29:51.987886+00	\N	\N	\N	2026-11-22 20:29:51.987924+00	later	m	\N	{"n": 2}	\N
5	8	0	waiting	f	1	2026-11-22 20:29:56.899267+00	2026-11-22 20:29:51.510268+00	410	answered 410	2026-11-22 20:29:51.344294+00	closed	\N	\N	{"n": 1}	\N
\.

COPY outbox_attempt (subscription, "position", attempt, at, duration_ms, status, error, answer) FROM stdin;
1	9	1	2026-11-22 20:29:51.992399+00	4	500	answered 500	not today
1	9	2	2026-11-22 20:29:53.047611+00	1	500	answered 500	not today
1	12	1	2026-11-22 20:29:52.047414+00	53	500	answered 500	not today
1	12	2	2026-11-22 20:29:53.107155+00	41	500	answered 500	not today
2	13	1	2026-11-22 20:29:52.006775+00	2	500	answered 500	not today
2	14	1	2026-11-22 20:29:52.0071+00	2	500	answered 500	not today
2	15	1	2026-11-22 20:29:52.007358+00	2	500	answered 500	not today
2	16	1	2026-11-22 20:29:52.007674+00	2	500	answered 500	not today
5	8	1	2026-11-22 20:29:51.519055+00	12	410	answered 410	\N
\.

COPY outbox_home (identity, system_identifier, database, created_at, relation) FROM stdin;
753222cc-e6a6-47d2-80b9-06fdb8cf4612	7711095753911145998	5	2026-11-22 20:29:51.318794+00	16581
\.

COPY stock_log (id, quantity, at, change, line, sku, reservation, actor, note) FROM stdin;
2	50	2026-11-22 20:29:57.349935+00	receive	\N	hat	\N	postgres	\N
3	50	2026-11-22 20:29:57.349954+00	receive	\N	cap	\N	postgres	\N
4	-3	2026-11-22 20:29:57.349961+00	adjust	\N	cap	\N	postgres	broken
50	4	2026-11-22 20:29:57.379316+00	reserve	\N	cap	in part	shop_app	\N
51	3	2026-11-22 20:29:57.379323+00	reserve	\N	hat	in part	shop_app	\N
53	3	2026-11-22 20:29:57.381741+00	confirm	1	hat	in part	shop_app	\N
54	1	2026-11-22 20:29:57.382183+00	reserve	\N	cap	in part, cancelled	shop_app	\N
55	1	2026-11-22 20:29:57.38219+00	reserve	\N	hat	in part, cancelled	shop_app	\N
80	1	2026-11-22 20:29:58.248102+00	reserve	\N	kept	last 1	shop_app	\N
81	1	2026-11-22 20:29:58.248282+00	reserve	\N	kept	last 2	shop_app	\N
82	1	2026-11-22 20:29:58.248319+00	reserve	\N	kept	last 3	shop_app	\N
83	1	2026-11-22 20:29:58.251173+00	reserve	\N	hat	lapsed	shop_app	\N
\.

COPY stock_hold (quantity, expires_at, line, reservation, sku) FROM stdin;
1	2026-11-22 20:29:58.252086+00	0	lapsed	hat
1	2026-11-22 20:44:57.378692+00	0	kept 14	kept
1	2026-11-22 21:29:57.365545+00	0	kept 15	kept
1	2026-11-22 21:29:57.36557+00	0	kept 16	kept
1	2026-11-22 21:29:57.365595+00	0	kept 17	kept
1	2026-11-22 21:29:57.365627+00	0	kept 18	kept
1	2026-11-22 21:29:57.365652+00	0	kept 19	kept
1	2026-11-22 21:29:57.365678+00	0	kept 20	kept
1	2026-11-22 21:29:57.36571+00	0	kept 21	kept
1	2026-11-22 21:29:57.365735+00	0	kept 22	kept
1	2026-11-22 21:29:57.36576+00	0	kept 23	kept
1	2026-11-22 21:29:57.365785+00	0	kept 24	kept
1	2026-11-22 21:29:57.36581+00	0	kept 25	kept
1	2026-11-22 21:29:57.365854+00	0	kept 26	kept
1	2026-11-22 21:29:57.365881+00	0	kept 27	kept
1	2026-11-22 21:29:57.365906+00	0	kept 28	kept
1	2026-11-22 21:29:57.365936+00	0	kept 29	kept
1	2026-11-22 21:29:57.365964+00	0	kept 30	kept
1	2026-11-22 21:29:57.382106+00	0	in part, cancelled	cap
1	2026-11-22 21:29:57.382106+00	1	in part, cancelled	hat
1	2026-11-22 21:29:57.785204+00	0	more 11	kept
1	2026-11-22 21:29:57.785228+00	0	more 12	kept
1	2026-11-22 21:29:58.246784+00	0	last 1	kept
1	2026-11-22 21:29:58.248249+00	0	last 2	kept
1	2026-11-22 21:29:58.248292+00	0	last 3	kept
2	2026-11-22 21:29:57.379247+00	2	in part	kept
4	2026-11-22 21:29:57.379247+00	0	in part	cap
\.

COPY stock_item (sku, received, adjusted, confirmed, reserved) FROM stdin;
cap	0	0	0	0
hat	0	0	0	0
kept	100	0	10	21
\.

COPY stock_ring (slot, state, generation, opened_at, closed_at, quiet_xid, rest_until) FROM stdin;
0	old	1	2026-11-22 20:29:50.830406+00	2026-11-22 20:29:57.764326+00	793	\N
1	current	2	2026-11-22 20:29:57.764761+00	\N	\N	\N
2	empty	\N	\N	\N	\N	\N
\.

COPY stock_history_0 (id, quantity, at, change, line, sku, reservation, actor, note) FROM stdin;
1	100	2026-11-22 20:29:57.349765+00	receive	\N	kept	\N	postgres	first
5	1	2026-11-22 20:29:57.365044+00	reserve	\N	kept	kept 1	web	\N
6	1	2026-11-22 20:29:57.365219+00	reserve	\N	kept	kept 2	web	\N
7	1	2026-11-22 20:29:57.365248+00	reserve	\N	kept	kept 3	web	\N
8	1	2026-11-22 20:29:57.365275+00	reserve	\N	kept	kept 4	web	\N
9	1	2026-11-22 20:29:57.365304+00	reserve	\N	kept	kept 5	web	\N
10	1	2026-11-22 20:29:57.36533+00	reserve	\N	kept	kept 6	web	\N
11	1	2026-11-22 20:29:57.365355+00	reserve	\N	kept	kept 7	web	\N
12	1	2026-11-22 20:29:57.36538+00	reserve	\N	kept	kept 8	web	\N
13	1	2026-11-22 20:29:57.365406+00	reserve	\N	kept	kept 9	web	\N
14	1	2026-11-22 20:29:57.365433+00	reserve	\N	kept	kept 10	web	\N
15	1	2026-11-22 20:29:57.365458+00	reserve	\N	kept	kept 11	web	\N
16	1	2026-11-22 20:29:57.365488+00	reserve	\N	kept	kept 12	web	\N
17	1	2026-11-22 20:29:57.365513+00	reserve	\N	kept	kept 13	web	\N
18	1	2026-11-22 20:29:57.365539+00	reserve	\N	kept	kept 14	web	\N
19	1	2026-11-22 20:29:57.365564+00	reserve	\N	kept	kept 15	web	\N
20	1	2026-11-22 20:29:57.365589+00	reserve	\N	kept	kept 16	web	\N
21	1	2026-11-22 20:29:57.365621+00	reserve	\N	kept	kept 17	web	\N
22	1	2026-11-22 20:29:57.365647+00	reserve	\N	kept	kept 18	web	\N
23	1	2026-11-22 20:29:57.365672+00	reserve	\N	kept	kept 19	web	\N
24	1	2026-11-22 20:29:57.365704+00	reserve	\N	kept	kept 20	web	\N
25	1	2026-11-22 20:29:57.365729+00	reserve	\N	kept	kept 21	web	\N
26	1	2026-11-22 20:29:57.365754+00	reserve	\N	kept	kept 22	web	\N
27	1	2026-11-22 20:29:57.365779+00	reserve	\N	kept	kept 23	web	\N
28	1	2026-11-22 20:29:57.365804+00	reserve	\N	kept	kept 24	web	\N
29	1	2026-11-22 20:29:57.365828+00	reserve	\N	kept	kept 25	web	\N
30	1	2026-11-22 20:29:57.365875+00	reserve	\N	kept	kept 26	web	\N
31	1	2026-11-22 20:29:57.365901+00	reserve	\N	kept	kept 27	web	\N
32	1	2026-11-22 20:29:57.365929+00	reserve	\N	kept	kept 28	web	\N
33	1	2026-11-22 20:29:57.365956+00	reserve	\N	kept	kept 29	web	\N
34	1	2026-11-22 20:29:57.365985+00	reserve	\N	kept	kept 30	web	\N
35	1	2026-11-22 20:29:57.37262+00	confirm	0	kept	kept 1	shop_app	\N
36	1	2026-11-22 20:29:57.372761+00	confirm	0	kept	kept 2	shop_app	\N
37	1	2026-11-22 20:29:57.372776+00	confirm	0	kept	kept 3	shop_app	\N
38	1	2026-11-22 20:29:57.372789+00	confirm	0	kept	kept 4	shop_app	\N
39	1	2026-11-22 20:29:57.3728+00	confirm	0	kept	kept 5	shop_app	\N
40	1	2026-11-22 20:29:57.372812+00	confirm	0	kept	kept 6	shop_app	\N
41	1	2026-11-22 20:29:57.372826+00	confirm	0	kept	kept 7	shop_app	\N
42	1	2026-11-22 20:29:57.372864+00	confirm	0	kept	kept 8	shop_app	\N
43	1	2026-11-22 20:29:57.372876+00	confirm	0	kept	kept 9	shop_app	\N
44	1	2026-11-22 20:29:57.372889+00	confirm	0	kept	kept 10	shop_app	\N
45	1	2026-11-22 20:29:57.374764+00	cancel	0	kept	kept 11	shop_app	\N
46	1	2026-11-22 20:29:57.374795+00	cancel	0	kept	kept 12	shop_app	\N
47	1	2026-11-22 20:29:57.374809+00	cancel	0	kept	kept 13	shop_app	\N
48	1	2026-11-22 20:29:57.374821+00	cancel	0	kept	kept 14	shop_app	\N
49	1	2026-11-22 20:29:57.378798+00	reinstate	0	kept	kept 14	shop_app	\N
52	2	2026-11-22 20:29:57.379329+00	reserve	\N	kept	in part	shop_app	\N
56	1	2026-11-22 20:29:57.382195+00	reserve	\N	kept	in part, cancelled	shop_app	\N
57	1	2026-11-22 20:29:57.382336+00	cancel	2	kept	in part, cancelled	shop_app	\N
\.

COPY stock_history_1 (id, quantity, at, change, line, sku, reservation, actor, note) FROM stdin;
58	1	2026-11-22 20:29:57.784806+00	reserve	\N	kept	more 1	shop_app	\N
59	1	2026-11-22 20:29:57.784996+00	reserve	\N	kept	more 2	shop_app	\N
60	1	2026-11-22 20:29:57.785027+00	reserve	\N	kept	more 3	shop_app	\N
61	1	2026-11-22 20:29:57.785055+00	reserve	\N	kept	more 4	shop_app	\N
62	1	2026-11-22 20:29:57.785078+00	reserve	\N	kept	more 5	shop_app	\N
63	1	2026-11-22 20:29:57.785101+00	reserve	\N	kept	more 6	shop_app	\N
64	1	2026-11-22 20:29:57.785122+00	reserve	\N	kept	more 7	shop_app	\N
65	1	2026-11-22 20:29:57.785145+00	reserve	\N	kept	more 8	shop_app	\N
66	1	2026-11-22 20:29:57.785172+00	reserve	\N	kept	more 9	shop_app	\N
67	1	2026-11-22 20:29:57.785197+00	reserve	\N	kept	more 10	shop_app	\N
68	1	2026-11-22 20:29:57.785222+00	reserve	\N	kept	more 11	shop_app	\N
69	1	2026-11-22 20:29:57.785248+00	reserve	\N	kept	more 12	shop_app	\N
70	1	2026-11-22 20:29:57.79588+00	cancel	0	kept	more 1	shop_app	\N
71	1	2026-11-22 20:29:57.795932+00	cancel	0	kept	more 2	shop_app	\N
72	1	2026-11-22 20:29:57.795946+00	cancel	0	kept	more 3	shop_app	\N
73	1	2026-11-22 20:29:57.795957+00	cancel	0	kept	more 4	shop_app	\N
74	1	2026-11-22 20:29:57.795968+00	cancel	0	kept	more 5	shop_app	\N
75	1	2026-11-22 20:29:57.795979+00	cancel	0	kept	more 6	shop_app	\N
76	1	2026-11-22 20:29:57.795989+00	cancel	0	kept	more 7	shop_app	\N
77	1	2026-11-22 20:29:57.796+00	cancel	0	kept	more 8	shop_app	\N
78	1	2026-11-22 20:29:57.796019+00	cancel	0	kept	more 9	shop_app	\N
79	1	2026-11-22 20:29:57.79603+00	cancel	0	kept	more 10	shop_app	\N
\.
SELECT pg_catalog.setval('idem_token_seq', 21, 't');
SELECT pg_catalog.setval('outbox_position_seq', 34, 't');
SELECT pg_catalog.setval('outbox_subscription_id_seq', 5, 't');
SELECT pg_catalog.setval('stock_log_id_seq', 83, 't');

DO $$
DECLARE
	age CONSTANT interval := clock_timestamp() - timestamptz '2026-11-22 20:30:01.4232+00';
	aged record;
BEGIN
	FOR aged IN
		SELECT a.attrelid::regclass AS name, string_agg(format('%1$I = %1$I + $1', a.attname), ', ') AS times
		FROM pg_attribute a
		JOIN pg_class c ON c.oid = a.attrelid AND c.relkind = 'r'
		JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'
		JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'idempotency'
		WHERE a.atttypid = 'timestamptz'::regtype
		GROUP BY a.attrelid
	LOOP
		EXECUTE format('UPDATE %s SET %s', aged.name, aged.times) USING age;
	END LOOP;
	UPDATE outbox_home SET relation = tableoid,
		system_identifier = (SELECT system_identifier FROM pg_control_system()),
		database = (SELECT oid FROM pg_database WHERE datname = current_database());
END
$$;
