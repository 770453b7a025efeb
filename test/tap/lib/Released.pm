# Released: makes a version of the extension that was released available to
# CREATE EXTENSION, with the library of today.

package Released;

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use Exporter qw(import);
use File::Basename qw(dirname);
use File::Copy qw(move);
use PostgreSQL::Test::Utils;

our @EXPORT = qw(install_released);

my $upgrade = abs_path(dirname(__FILE__) . '/../../upgrade');
my @installed;

# The script as it was released.  With replace_lost, a C function that the
# library does not have any more is replaced by another one, since the server
# would look for it.  Other tests use the same directory, so the file must be
# complete when it appears.
sub install_released
{
	my ($version, %params) = @_;
	chomp(my ($share, $libraries) = map { `pg_config --$_` } qw(sharedir pkglibdir));
	my $script = "$share/extension/idempotency--$version.sql";
	my $released = slurp_file("$upgrade/idempotency--$version.sql");

	if ($params{replace_lost})
	{
		my %exported = map { $_ => 1 } `nm -D --defined-only $libraries/idempotency.so` =~ /(\w+)$/mg;
		die 'the library exports nothing' unless $exported{outbox_wake};
		$released =~ s{^CREATE FUNCTION (\w+)\([^;]*?\nAS 'MODULE_PATHNAME'\K(?:, '(\w+)')?(?=;)}
			{$exported{$2 // $1} ? $2 ? ", '$2'" : '' : ", 'outbox_wake'"}gme;
	}
	append_to_file("$script.$$", $released);
	move("$script.$$", $script) or die "could not install $script: $!";
	push @installed, $script;
	return;
}

END { unlink(@installed) }

1;
