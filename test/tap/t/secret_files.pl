# Secrets can be in files of the receiver's directory, and so be in no table,
# dump or view: read for each request, with the secret before in a second line.
# If this fails, receivers refuse events after a rotation, an event is signed
# with the secret of another receiver, or a secret leaves its file.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Receiver;
use Server;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir();
my $receiver = Receiver->start;
my $node = start_server('secret_files', conf => 'idempotency.sweep_interval = 100ms');

# Writes a file of the receiver, or of a host beside it.
sub put
{
	my ($name, $content, $host) = @_;
	my $path = "$dir/credentials";
	for ('', '/postgres', '/' . ($host // '127.0.0.1') . ":$receiver->{port}")
	{
		$path .= $_;
		-d $path or mkdir $path or die "cannot make $path: $!";
	}
	append_to_file("$path/new", $content);
	rename "$path/new", "$path/$name" or die "cannot rename $name: $!";
	return "$path/$name";
}

# Sends an event; returns the last error, or '' if it was delivered.
sub send_event
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $through = "SELECT delivered + dead FROM outbox_subscriptions WHERE name = '$name'";
	my $before = sql($through);
	my $position = sql("SELECT outbox_enqueue('$name', '{}')");
	wait_until($node, "SELECT ($through) > $before", "$name: the event is through");
	return sql("SELECT coalesce((SELECT last_error FROM outbox_dead WHERE subscription = '$name' AND position = $position), '')");
}

# Is the last request signed, and so by each of these secrets?
sub signed
{
	my ($count, @secrets) = @_;
	my ($last) = reverse $receiver->requests('filed');
	my ($id, $time, $body) = ($last->{headers}{'webhook-id'}, $last->{headers}{'webhook-timestamp'}, $last->{body});
	my @signatures = split(/ /, $last->{headers}{'webhook-signature'});
	return @signatures == $count && $last->{verified} && !grep {
		my $own = sql("SELECT outbox_signature('$_', '$id', $time, " . quoted($body) . ')');
		!grep { $_ eq $own } @signatures } @secrets;
}

sub quoted
{
	my ($text) = @_;
	return "'" . ($text =~ s/'/''/gr) . "'";
}

my ($first, $second, $third) = map { planted_secret() } 1 .. 3;
my $url = $receiver->url('/ok/filed');
my $subscribe = "SELECT outbox_subscribe('filed', '$url', topics => '{filed}', secret => '%s', retry_schedule => '{0 s}')";

is(error_code($node, 'postgres', sprintf($subscribe, 'file:hmac')), '55000', 'without a directory there are no files');
alter_system('idempotency.webhook_credentials_directory', "'$dir/credentials'");
wait_until($node, "SELECT current_setting('idempotency.webhook_credentials_directory') <> ''", 'there is one now');
is(error_code($node, 'postgres', sprintf($subscribe, $_)), '22023', "refused: $_")
  for 'file:', 'file:../hmac', 'file:.hmac', 'file:a/b', 'file:' . 'x' x 256, 'FILE:hmac', 'file:a b';
is(sql(sprintf($subscribe, 'file:hmac')), 'file:hmac', 'the secret is in a file');

# --- the file is read for each request

like(send_event('filed'), qr/^secret "hmac" cannot be opened: No such file/, 'nothing is sent before there is one');
is(scalar($receiver->requests('filed')), 0, 'really nothing');
put('hmac', "$first\n");
$receiver->set_secret('filed', $first);
is(send_event('filed'), '', 'then it is sent');
ok(signed(1, $first), 'and signed with the secret');
put('hmac', "$second\r\n$first\r\n");
is(send_event('filed'), '', 'a new secret is used with the next request');
ok(signed(2, $second, $first), 'in the overlap, the old one signs, too');
$receiver->set_secret('filed', $second);
put('hmac', $second);
send_event('filed');
ok(signed(1, $second), 'without a second line, only the new one does');

# --- files that cannot sign

my $key = sql('SELECT outbox_key_generate()');
my $count = $receiver->requests('filed');
for my $content ("", "\n", "nonsense", "whsec_c2hvcnQ=", $key, "$first\n$second\n$third\n", "$first\n\n$second", " $first", "$first\n$key")
{
	put('hmac', $content);
	like(send_event('filed'), qr/^secret "hmac" (?:is empty|does not consist of one or two lines that can sign)$/, 'what cannot sign does not');
}
put('hmac', $first x 20);
like(send_event('filed'), qr/^secret "hmac" is too long$/, 'nor does what is long');
is(scalar($receiver->requests('filed')), $count, 'nothing was sent meanwhile');

# --- rotation between files, and from and to the table

my $file = put('hmac', $second);
put('other', $third);
is(sql("SELECT outbox_rotate_secret('filed', secret => 'file:other')"), 'file:other', 'the secret is in another file');
send_event('filed');
ok(signed(2, $third, $second), 'both sign during the overlap');
unlink $file;
$receiver->set_secret('filed', $third);
is(send_event('filed'), '', 'an old file that is gone stops nothing');
ok(signed(1, $third), 'and does not sign');
sql("SELECT outbox_rotate_secret('filed', overlap => '0', secret => '$first')");
$receiver->set_secret('filed', $first);
send_event('filed');
ok(signed(1, $first), 'it can be in the table again');
sql("SELECT outbox_rotate_secret('filed', overlap => '1 h', secret => 'file:other')");
send_event('filed');
ok(signed(2, $third, $first), 'and leave it');

# --- each receiver has its own files

sql("SELECT outbox_rotate_secret('filed', overlap => '0', secret => 'file:other')");
wait_until($node, "SELECT old_secret IS NULL FROM outbox_subscription WHERE name = 'filed'", 'no old secret');
my $elsewhere = $url =~ s/127\.0\.0\.1/localhost/r;
sql("SELECT outbox_alter('filed', url => '$elsewhere')");
like(send_event('filed'), qr/^secret "other" cannot be opened: No such file/, 'another host does not get signatures of that secret');
put('other', $second, 'localhost');
$receiver->set_secret('filed', $second);
is(send_event('filed'), '', 'it has its own');
ok(signed(1, $second), 'which signs');

# --- it is nowhere else

my $planted = PLANTED;
$node->command_ok([ 'pg_dump', '-f', "$dir/dump", $node->connstr('postgres') ], 'pg_dump');
unlike(slurp_file("$dir/dump"), qr/$planted/, 'no secret is in a dump');
like(slurp_file("$dir/dump"), qr/file:other/, 'but the name of its file is');
is(sql("SELECT details FROM idempotency_audit WHERE action = 'outbox_subscribe'") =~ s/.*("secret": "[^"]*").*/$1/r,
	'"secret": "file:hmac"', 'the audit has the name, too');
unlike(slurp_file($node->logfile) =~ s/.*(?:LOG:  statement|STATEMENT): .*//gr, qr/$planted/, 'no secret is in the log');

done_testing();
