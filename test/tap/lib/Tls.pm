# Tls: certificates for servers of a test on 127.0.0.1.

package Tls;

use strict;
use warnings FATAL => 'all';

use Exporter qw(import);
use PostgreSQL::Test::Utils;

our @EXPORT = qw(make_certificate);

# Makes a key and a certificate, signed by itself: "$path.key", "$path.crt".
sub make_certificate
{
	my ($path) = @_;
	my @command = (
		qw(openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2),
		qw(-subj /CN=test -addext subjectAltName=IP:127.0.0.1),
		'-keyout', "$path.key", '-out', "$path.crt");

	run_command(\@command) or die "openssl failed";
	return;
}

1;
