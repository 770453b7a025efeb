# Prometheus: a private Prometheus that listens on loopback only, with the files
# of the directory monitoring, and the exporters that it reads from.
#
# A minute takes MINUTE_S seconds: "5m" becomes "10s", and "* 60" becomes "* 2",
# in the configurations and alerts.  Nothing else is changed but addresses.
#
# Needs: prometheus prometheus-sql-exporter prometheus-postgres-exporter

package Prometheus;

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use Exporter qw(import);
use File::Basename qw(dirname);
use HTTP::Tiny;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Program;
use Time::HiRes qw(sleep time);

our @EXPORT_OK = qw(MINUTE_S MONITORING);

use constant MONITORING => abs_path(dirname(__FILE__) . '/../../../monitoring');
use constant { MINUTE_S => 2, WAIT_S => 300, PAUSE_S => 0.2 };

sub _shorten
{
	my ($text) = @_;
	return $text =~ s/\b(\d+)m\b/$1 * MINUTE_S . 's'/ger =~ s/(\*|cache_seconds:) 60\b/"$1 " . MINUTE_S/ger;
}

sub _copy
{
	my ($self, $name, $change) = @_;
	my $text = _shorten(slurp_file(MONITORING . "/$name"));

	$text = $change->($text) if $change;
	append_to_file("$self->{dir}/$name", $text);
	return "$self->{dir}/$name";
}

# Starts an exporter, "sql" or "postgres", of databases of a server, and a
# Prometheus that reads it.
sub start
{
	my ($class, $exporter, $node, @databases) = @_;
	my $self = bless {
		exporter => $exporter,
		databases => \@databases,
		node => $node,
		dir => PostgreSQL::Test::Utils::tempdir,
		port => PostgreSQL::Test::Cluster::get_free_port(),
		exporter_port => PostgreSQL::Test::Cluster::get_free_port(),
		http => HTTP::Tiny->new(timeout => WAIT_S)
	}, $class;

	$self->{queries} = $self->_copy("$exporter-exporter.yml");
	$self->start_exporter;
	$self->_copy('alerts.yml');
	my $configuration = $self->_copy('prometheus.yml', sub {
			my ($text) = @_;
			$text =~ s/localhost:\d+/127.0.0.1:$self->{exporter_port}/ or die 'no target';
			return "global:\n  evaluation_interval: 1s\n$text";
		});
	$self->{server} = Program->start([
			'prometheus', "--storage.tsdb.path=$self->{dir}/data", '--log.level=warn',
			"--web.listen-address=127.0.0.1:$self->{port}", "--config.file=$configuration" ]);
	$self->wait_until(sub { $self->_get($self->{port}, '/-/ready')->{success} }) or die 'Prometheus does not start';
	return $self;
}

sub start_exporter
{
	my ($self) = @_;
	my ($first, @others) = @{ $self->{databases} };
	my ($host, $port) = ($self->{node}->host, $self->{node}->port);
	my $listen = "web.listen-address=127.0.0.1:$self->{exporter_port}";

	# The first one logs to its standard output, which nobody reads here: when the
	# pipe is full, it would stand still.
	$self->{exporter_program} = $self->{exporter} eq 'sql'
	  ? Program->start([ qw(sh -c), 'exec "$@" >&2', qw(sh prometheus-sql-exporter), "-$listen", '-config.file', $self->{queries} ],
		LOGLEVEL => 'WARN',
		IDEMPOTENCY_CONNECTIONS => '[' . join(', ', map { "'postgres://prometheus@/$_?host=$host&port=$port'" } $first, @others) . ']')
	  : Program->start([
			'prometheus-postgres-exporter', "--$listen", '--disable-default-metrics', '--disable-settings-metrics',
			'--no-collector.bgwriter', '--no-collector.database', '--auto-discover-databases',
			'--include-databases=' . join(',', @others), "--extend.query-path=$self->{queries}" ],
		DATA_SOURCE_NAME => "user=prometheus host=$host port=$port dbname=$first");
	return;
}

sub stop_exporter
{
	my ($self) = @_;
	$self->{exporter_program}->stop;
	return;
}

# Ends Prometheus and the exporter.
sub stop
{
	my ($self) = @_;
	$self->{server}->stop;
	$self->stop_exporter;
	return;
}

# Waits until a condition is true; returns whether it is.
sub wait_until
{
	my ($self, $condition) = @_;
	my $until = time + WAIT_S;

	while (!$condition->())
	{
		return 0 if time > $until;
		sleep PAUSE_S;
	}
	return 1;
}

sub _get
{
	my ($self, $port, $path) = @_;
	return $self->{http}->get("http://127.0.0.1:$port$path");
}

# What the exporter shows.
sub exported
{
	my ($self) = @_;
	return $self->_get($self->{exporter_port}, '/metrics')->{content};
}

sub address
{
	my ($self) = @_;
	return "127.0.0.1:$self->{port}";
}

# Asks the API of Prometheus; returns its data.
sub ask
{
	my ($self, $what, %parameters) = @_;
	my $query = $self->{http}->www_form_urlencode(\%parameters);
	my $answer = $self->_get($self->{port}, "/api/v1/$what?$query");

	die "$what $query: $answer->{content}" unless $answer->{success};
	return decode_json($answer->{content})->{data};
}

# The series of an expression, each with "metric" and "value".
sub series
{
	my ($self, $expression) = @_;
	return @{ $self->ask('query', query => $expression)->{result} };
}

# The value of an expression, or an empty string.
sub value
{
	my ($self, $expression) = @_;
	my ($series) = $self->series($expression);
	return $series ? $series->{value}[1] : '';
}

# The names of the alerts that fire.
sub firing
{
	my ($self) = @_;
	return map { $_->{labels}{alertname} } grep { $_->{state} eq 'firing' } @{ $self->ask('alerts')->{alerts} };
}

# The names of the alerts that have fired since a time.
sub fired_since
{
	my ($self, $since) = @_;
	my $seconds = int(time - $since) || 1;
	return map { $_->{metric}{alertname} } $self->series(qq(count by (alertname) (last_over_time(ALERTS{alertstate="firing"}[${seconds}s]))));
}

1;
