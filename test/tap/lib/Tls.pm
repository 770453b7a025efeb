# Tls: certificates for servers of a test on 127.0.0.1.
#
# Needs: openssl

package Tls;

use strict;
use warnings FATAL => 'all';

use Exporter qw(import);
use PostgreSQL::Test::Utils;

our @EXPORT = qw(make_certificate make_authority issue_certificate revoke_certificate);

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

# Makes a certification authority in a new directory: its certificate is ca.crt.
sub make_authority
{
	my ($dir) = @_;

	mkdir $dir or die "cannot make $dir: $!";
	append_to_file("$dir/index", '');
	append_to_file("$dir/config", <<EOF);
[ca]
default_ca = authority
[authority]
certificate = $dir/ca.crt
private_key = $dir/ca.key
database = $dir/index
new_certs_dir = $dir
rand_serial = yes
unique_subject = no
copy_extensions = copy
default_md = sha256
default_days = 2
default_crl_days = 2
policy = policy
[policy]
commonName = supplied
EOF
	run_command([ qw(openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2),
		qw(-subj /CN=authority -keyout), "$dir/ca.key", '-out', "$dir/ca.crt" ]) or die 'openssl failed';
	return;
}

# Has an authority issue a certificate: "$path.key", "$path.crt".  Parameters:
#   cn: the name of its subject
#   san: its subjectAltName; by default the address 127.0.0.1
#   dates: further options of openssl ca
sub issue_certificate
{
	my ($authority, $path, %params) = @_;
	my $san = $params{san} // 'IP:127.0.0.1';

	run_command([ qw(openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes),
		'-subj', '/CN=' . ($params{cn} // 'test'), '-addext', "subjectAltName=$san",
		'-keyout', "$path.key", '-out', "$path.csr" ]) or die 'openssl failed';
	run_command([ qw(openssl ca -batch -notext -config), "$authority/config",
		'-in', "$path.csr", '-out', "$path.crt", @{ $params{dates} // [] } ]) or die 'openssl failed';
	return;
}

# Has an authority revoke a certificate; "$authority/crl" is then its list.
sub revoke_certificate
{
	my ($authority, $path) = @_;
	my @ca = (qw(openssl ca -config), "$authority/config");

	run_command([ @ca, '-revoke', "$path.crt" ]) or die 'openssl failed';
	run_command([ @ca, '-gencrl', '-out', "$authority/crl" ]) or die 'openssl failed';
	return;
}

1;
