# "make demo" does what demo/README.md says: it passes its checks, it shows a page
# whose numbers are those of the database, what it leaves with KEEP=1 can be used
# and removed as it says, and otherwise nothing is left, whenever it is
# interrupted.  If this fails, the first impression of a new user is wrong.
#
# Needs: chromium nodejs npm demo/node_modules

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use FindBin;
use HTTP::Tiny;
use IPC::Run;
use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;

use constant { WAIT_S => 300, PAGE_MS => 5000, LOOK_S => 90, LOOKS_MAX => 5 };

my $root = abs_path("$FindBin::RealBin/../../..");
my $mark = "DEMO_TEST=$$";

# Sockets below need short names.
my $work = PostgreSQL::Test::Utils::tempdir_short();
my %demo = (TMPDIR => $work, DEMO_TEST => $$, REQUESTS => 600, TERM => 'xterm');

sub on_terminal
{
	my (%env) = @_;
	my $self = { in => '', out => '', timer => IPC::Run::timer(WAIT_S) };
	local %ENV = (%ENV, %demo, %env);
	# The caller may ignore what Ctrl-C sends, as a shell's background jobs do.
	$self->{run} = IPC::Run::start([ qw(env --default-signal=INT), "$root/demo/run", '--watch' ],
		'<pty<', \$self->{in}, '>pty>', \$self->{out}, $self->{timer});
	return $self;
}

sub wait_for_text
{
	my ($self, $text) = @_;
	$self->{timer}->start(WAIT_S);
	my $found = pump_until($self->{run}, $self->{timer}, \$self->{out}, $text);
	diag("it printed: $self->{out}") unless $found;
	return ok($found, "prints $text");
}

sub type_and_finish
{
	my ($self, $keys) = @_;
	$self->{in} .= $keys;
	$self->{timer}->start(WAIT_S);
	$self->{run}->pump while $self->{run}->pumpable && !$self->{timer}->is_expired;
	$self->{run}->kill_kill(grace => WAIT_S) if $self->{timer}->is_expired;
	$self->{run}->finish;
	return $self->{run}->result(0);
}

# A directory for PATH, in which pg_lsclusters has this to say.
sub with_clusters
{
	my ($text) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir();
	append_to_file("$dir/pg_lsclusters", "#!/bin/sh\nprintf '$text'\n");
	chmod 0755, "$dir/pg_lsclusters";
	return "$dir:$ENV{PATH}";
}

# Processes of a demonstration, by their environment, and its files.
sub what_is_left
{
	my @left = glob("$work/*");
	for my $file (glob('/proc/[0-9]*/environ'))
	{
		next if $file eq "/proc/$$/environ";
		open(my $environ, '<', $file) or next;
		local $/ = undef;
		push @left, $file if grep { $_ eq $mark } split /\0/, <$environ> // '';
	}
	return "@left";
}

# In a browser; the screenshots are kept with the logs.  On a slow machine
# Chromium's virtual time sometimes stands still, so it gets several chances.
sub look_at
{
	my ($url, $width, $height) = @_;
	my $shot = "$PostgreSQL::Test::Utils::log_path/demo_${width}x$height.png";
	my ($dom, $log);
	for (1 .. LOOKS_MAX)
	{
		my $profile = PostgreSQL::Test::Utils::tempdir();
		unlink $shot;
		last if IPC::Run::run([ qw(timeout -k 5), LOOK_S, qw(chromium --headless --no-sandbox --disable-gpu),
				qw(--disable-dev-shm-usage --hide-scrollbars), "--user-data-dir=$profile",
				"--window-size=$width,$height", '--virtual-time-budget=' . PAGE_MS,
				"--screenshot=$shot", '--dump-dom', $url ],
			'<', \undef, '>', \$dom, '2>', \$log);
		diag("chromium: $?");
	}
	ok(-s $shot, "a screenshot of $width x $height") or diag($log);
	return $dom;
}

# The numbers of the page by their names.
sub numbers_of
{
	my ($dom) = @_;
	my %number = $dom =~ /(?:data-n|id)="([a-z_-]+)"[^>]*>([0-9,]+)</g;
	tr/,//d for values %number;
	return \%number;
}

# --- left running, with a page

my ($out, $err) = ('', '');
{
	local %ENV = (%ENV, %demo, PATH => with_clusters('15 main 5432 down\n'));
	IPC::Run::run([ qw(make -s -C), $root, qw(demo WATCH=1 KEEP=1) ], '<', \undef, '>', \$out, '2>', \$err,
		IPC::Run::timeout(WAIT_S));
	is($?, 0, 'make demo') or diag("$out$err");
}
like($out, qr/600 customers order.*In stock: 120 lamps.*All 11 checks hold\..*demo\/shop\.sql/s, 'introduction, report, and what to read');
like($out, qr/ % of 2,400 checkouts answered: /, 'progress');
unlike($out, qr/[\e\r]/, 'without a terminal, only lines');

my ($psql) = $out =~ /^ *open psql +(.*)/m;
my ($tail) = $out =~ /^ *see deliveries +tail -f (.*)/m;
my ($url) = $out =~ /^ *see the page +(.*)/m;
my ($stop) = $out =~ /^ *stop and remove +(.*)/m;
my ($report) = $out =~ /^(  600 requests, sent .*)/ms;
is_deeply([ grep { length(s/✓/v/r =~ s/\Q$work\E/\/tmp/r) > 80 } split /\n/, $report ], [], 'the report and the commands are no wider than a terminal');
unlike($out, qr/make demo KEEP=1/, 'it does not tell what was done');
unlike($out, qr/pg_createcluster/, 'there is a cluster already');
like($url, qr{^http://127\.0\.0\.1:[0-9]+/$}, 'the page is on the loopback interface');

sub ask
{
	my ($query, $owner) = @_;
	my ($stdout, $stderr) = run_command([ $psql, ($owner ? qw(-U postgres) : ()), '-XAtc', $query ]);
	diag($stderr) if $stderr;
	return $stdout;
}

# What the report says after a label.
sub figure
{
	my ($label) = @_;
	return $out =~ /^ +\Q$label\E {2,}(\S.*)/m ? $1 : '';
}

my $narrow = look_at($url, 390, 844);
my $page = numbers_of(look_at($url, 1280, 800));
my %expected = split /[|\n]/, ask(<<'END', 1);
SELECT 'orders', count(*) FROM shop.orders
UNION ALL SELECT 'paid', count(*) FROM shop.orders WHERE status = 'paid'
UNION ALL SELECT 'calls', count(*) FROM load.call
UNION ALL SELECT 'claimed', count(*) FROM load.request
UNION ALL SELECT 'repeated', count(*) FROM load.call WHERE answer ? 'replayed' AND NOT died
UNION ALL SELECT 'rolled_back', count(*) FROM load.call WHERE died
UNION ALL SELECT 'expired', count(*) FROM outbox_log WHERE topic = 'stock.expired'
UNION ALL SELECT 'arrived', count(*) FROM outbox_log WHERE topic IN ('order.placed', 'order.paid', 'stock.expired')
UNION ALL SELECT 'stock-' || sku, available FROM stock_levels
END
# What the receiver has answered, as its log has it.
my $log = slurp_file($tail);
$expected{failed} = () = $log =~ / 503 /g;
$expected{busy} = () = $log =~ / 429 /g;
$expected{cut} = () = $log =~ / cut /g;
cmp_ok(scalar(keys %expected), '>=', 19, 'the database and the log have numbers');
is_deeply({ map { $_ => $page->{$_} } keys %expected }, \%expected, 'and the page has the same');
is_deeply({ map { $_ => numbers_of($narrow)->{$_} } keys %expected }, \%expected, 'on a narrow screen too');
is($page->{claimed} + $page->{repeated} + $page->{rolled_back}, $page->{calls}, 'each call is counted once');
is_deeply([ map { s/ .*//r =~ tr/,//dr } figure('replayed'), figure('rolled back'), figure('refused'), figure('placed') ],
	[ @$page{qw(repeated rolled_back refused orders)} ], 'the report has the same numbers');
my ($told) = $out =~ /.*^100 % .* ([0-9,]+) copies recognised/ms;
is($told =~ tr/,//dr, $page->{repeated}, 'and so has the ticker');
like($narrow, qr/settled/, 'it says that nothing is on its way');

# --- the times of deliveries, by the events that the receiver has seen

sub time_as_printed
{
	my ($ms) = @_;
	return $ms < 999.95 ? sprintf('%.1f ms', $ms) : sprintf('%.1f s', $ms / 1000);
}

sub percentile
{
	my ($share, $events) = @_;
	my @ms = sort { $a <=> $b } map { $_->{latency_ms} } @$events;
	my $place = $share * $#ms;
	my $below = $ms[$place];
	return time_as_printed($below) if $place == $#ms;
	return time_as_printed($below + ($place - int $place) * ($ms[$place + 1] - $below));
}

my ($summary) = glob("$work/idem.*/t/summary.json");
my %number = split /[|\n]/, ask(q(SELECT 'order-' || id, number FROM shop.orders JOIN load.request USING (request_id)), 1);
my (@calm, @burst);
for my $event (@{ decode_json(slurp_file($summary))->{events} })
{
	next if $event->{type} eq 'stock.expired';
	push @{ $number{ $event->{order} } <= 100 ? \@calm : \@burst }, $event;
}
is(figure('delivery, calm'), percentile(0.5, \@calm) . '  from enqueue, p50; p99 ' . percentile(0.99, \@calm) . ' with retries',
	'the time of delivery of what came before the burst');
like(figure('delivery, burst'), qr/^\Q@{[ percentile(0.5, \@burst) . '  p50; p99 ' . percentile(0.99, \@burst) ]}, beside 16 /,
	'and in the burst');
my @arrived = sort { $a <=> $b } map { $_->{arrived_ms} } @burst;
my $rate = sprintf('%.0f', 1000 * @burst / ($arrived[-1] - $arrived[0]));
$rate =~ s/(?<=[0-9])(?=(?:[0-9]{3})+$)/,/g;
like(figure('arrived'), qr{^$rate/s }, 'and how many a second');

my $checkout = q(SELECT checkout('my-request', 'me', '{"hat": 1}'));
my ($order) = ask($checkout) =~ /"order": ([0-9]+)/;
like(ask($checkout), qr/"order": $order.*"replayed": true/, 'psql: an order, once');
is(ask("SELECT pay($order)"), 'done', 'which there is time to pay');
my $deadline = time + WAIT_S;
sleep(1) until slurp_file($tail) =~ / 204 order\.paid order-$order\n/ || time > $deadline;
like(slurp_file($tail), qr/ order\.placed order-$order\n/, 'its events are seen');
sleep(1) until HTTP::Tiny->new->get("${url}state")->{content} =~ /"orders":@{[$expected{orders} + 1]},/ || time > $deadline;
$page = numbers_of(look_at($url, 1280, 800));
is("$page->{orders} $page->{arrived}", join(' ', $expected{orders} + 1, $expected{arrived} + 2), 'and the page goes on');

is(HTTP::Tiny->new->get("${url}package.json")->{status}, 404, 'it serves nothing else');
isnt(what_is_left(), '', 'all of that is found here');
($out, $err) = run_command([$stop]);
is("$out$err", '', 'the last command prints nothing');
is(what_is_left(), '', 'and nothing is left');

# --- on a terminal, until Enter

my $demo = on_terminal(WATCH => 1, NO_COLOR => 1, PATH => with_clusters(''));
wait_for_text($demo, qr/Watch it at (\S+)/);
my ($address) = $demo->{out} =~ /Watch it at (\S+)/;
is(HTTP::Tiny->new->get($address)->{status}, 200, 'the page is there before the shop opens');
wait_for_text($demo, qr/All 11 checks hold.*press Enter/s);
is(type_and_finish($demo, "\n"), 0, 'it ends with Enter');
like($demo->{out}, qr/of [0-9]+ files/, 'the build has progress');
like($demo->{out}, qr/(?:█|░)+ +[0-9]+ % of 2,400 checkouts/, 'and so has the shop');
like($demo->{out}, qr/\e\[[0-9]+F/, 'in place');
like($demo->{out}, qr/make demo KEEP=1 /, 'it tells how to keep the shop');
like($demo->{out}, qr/sudo pg_createcluster [0-9]+ main --start/, 'and how to create a cluster, as there is none');
unlike($demo->{out}, qr/\e\[[0-9;]*m/, 'NO_COLOR=1: no colours');
is(what_is_left(), '', 'nothing is left');

# --- interrupted

for my $moment (qr/ [0-9]+ of [0-9]+ files/, qr/ % of 2,400 checkouts/)
{
	$demo = on_terminal();
	HTTP::Tiny->new->get($1) if $moment =~ /checkouts/ && wait_for_text($demo, qr/Watch it at /) && $demo->{out} =~ m{(http://[0-9.:]+/)};
	wait_for_text($demo, $moment);
	like($demo->{out}, qr/\e\[36m/, 'in colour') if $moment =~ /checkouts/;
	is(type_and_finish($demo, "\x03"), 130, 'Ctrl-C ends it');
	is(what_is_left(), '', 'nothing is left');
}

done_testing();
