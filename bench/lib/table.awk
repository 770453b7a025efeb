# table.awk: the report's table; to be run with figures.awk. Its second file
# has the lines, as lib/measure notes them down.
#
# A ratio is the median of the ratios of paired figures, those of one round;
# the range is that of the single ones. A figure is the median of the rounds.

function with_thousands(value,    text) {
	text = sprintf("%.0f", value)
	while (match(text, /^[0-9]+/) && RLENGTH > 3)
		text = substr(text, 1, RLENGTH - 3) "," substr(text, RLENGTH - 2)
	return text
}

function show(value, unit) {
	if (unit == "/s")
		return with_thousands(value) "/s"
	if (unit ~ /^(us|ms|MB)$/ || (value < 10 && value != int(value)))
		return sprintf("%.2f ", value) unit
	return sprintf("%.0f%s", value, unit == "" ? "" : " " unit)
}

function row(a, b, c, d, e, f, g) {
	printf "| %s | %s | %s | %s | %s | %s | %s |\n", a, b, c, d, e, f, g
}

FILENAME == ARGV[1] { next }

# A table for each section: one wide table of all is hard to read.
function end_table() {
	if (in_table)
		print ""
	in_table = 0
}

$1 == "section" {
	unit = $3
	end_table()
	printf "## %s\n\n", $2
}

$1 == "note" {
	end_table()
	printf "%s\n\n", $2
}

$1 == "compare" {
	ours = $2 FS $3 FS $4
	peer = $2 FS $3 FS $5
	if (!(ours in rounds) || ($5 != "" && !(peer in rounds))) {
		print "no figures for: " $0 >"/dev/stderr"
		exit 1
	}
	if (!in_table) {
		row("", "contender", "figure", "against", "figure", "ratio", "range")
		row("---", "---", "--:", "---", "--:", "--:", "---")
		in_table = 1
	}
	peer_figure = shown_ratio = range = ""
	if ($5 != "") {
		peer_figure = show(median_figure(peer), unit)
		if (find_ratios(ours, peer)) {
			shown_ratio = sprintf("%.2f", ratio)
			range = sprintf("%.2f to %.2f", ratio_min, ratio_max)
		}
	}
	row($3, $4, show(median_figure(ours), unit), $5, peer_figure, shown_ratio, range)
}

END { end_table() }
