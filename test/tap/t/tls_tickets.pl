# An endpoint over TLS that sends tickets of sessions without end is left after
# some of them.  If this fails, a read does not return while tickets come, and
# the relay serves no other endpoint.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use PostgreSQL::Test::Utils;
use Program;
use Server;
use Test::More;
use Tls;

my $programs = "$FindBin::RealBin/../programs";
my $dir = PostgreSQL::Test::Utils::tempdir();
make_certificate("$dir/server");
system_or_bail('cc', '-o', "$dir/tickets", "$programs/tickets.c", '-lssl', '-lcrypto');
my $endpoint = Program->start([ "$dir/tickets", "$dir/server" ]);
my ($port) = $endpoint->line('port') =~ /^port (\d+)/;
$ENV{SSL_CERT_FILE} = "$dir/server.crt";

my $node = start_server('tls_tickets');
sql("SELECT outbox_subscribe('tickets', 'https://127.0.0.1:$port/', timeout => '60 s', retry_schedule => '{0 s}')");
sql("SELECT outbox_enqueue('tickets', '{}')");
wait_until($node, 'SELECT dead = 1 FROM outbox_subscriptions', 'the attempt is over');
like(sql('SELECT last_error FROM outbox_dead'), qr/^the answer is longer than \d+ bytes$/, 'after some of them');

done_testing();
