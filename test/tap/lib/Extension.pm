# Extension: extensions of test/tap/extensions, which stand for others that
# Debian has no package of.
#
# Needs: postgresql-plpython3-MAJOR python3-jsonschema

package Extension;

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use Exporter qw(import);
use File::Basename qw(basename dirname);
use File::Copy qw(copy);

our @EXPORT = qw(install_extension);

my $extensions = abs_path(dirname(__FILE__) . '/../extensions');

# Makes an extension available to CREATE EXTENSION, on the private copy of the
# server that all tests use.
sub install_extension
{
	my ($node, $name) = @_;
	my $dir = $node->config_data('--sharedir') . '/extension';

	for my $file (glob "$extensions/$name*")
	{
		# Another test may be reading it now.
		my $target = "$dir/" . basename($file);
		copy($file, "$target.$$") && rename("$target.$$", $target) or die "could not copy $file: $!";
	}
	return;
}

1;
