# table.awk: the report's table; to be run with figures.awk. Its second file
# has the lines, as lib/measure notes them down.
#
# A ratio is the median of the ratios of paired figures, those of one round;
# the range is that of the single ones. A figure is the median of the rounds.

# Sets ratio, ratio_min and ratio_max; false if one would be over nothing.
function find_ratios(ours, peer,    list, n, i) {
	n = rounds[ours] < rounds[peer] ? rounds[ours] : rounds[peer]
	for (i = 1; i <= n; i++) {
		if (figure[peer, i] == 0)
			return 0
		list[i] = figure[ours, i] / figure[peer, i]
	}
	ratio = median(list, n)
	ratio_min = list[1]
	ratio_max = list[n]
	return 1
}

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

# TARGET is "ratio >= 1.0" or "figure <= 2". The digits that are shown decide.
function is_met(target,    word, value, limit) {
	split(target, word, " ")
	value = sprintf("%.2f", word[1] == "ratio" ? ratio : our_figure) + 0
	limit = word[3] + 0
	return word[2] == ">=" ? value >= limit : value <= limit
}

function row(a, b, c, d, e, f, g, h) {
	printf "| %s | %s | %s | %s | %s | %s | %s | %s |\n", a, b, c, d, e, f, g, h
}

FILENAME == ARGV[1] { next }

FNR == 1 {
	row("", "contender", "figure", "against", "figure", "ratio", "range", "target")
	row("---", "---", "--:", "---", "--:", "--:", "---", "---")
}

$1 == "section" {
	unit = $3
	row("**" $2 "**", "", "", "", "", "", "", "")
}

$1 == "compare" {
	ours = $2 FS $3 FS $4
	peer = $2 FS $3 FS $5
	target = $6
	if (!(ours in rounds) || ($5 != "" && !(peer in rounds))) {
		print "no figures for: " $0 >"/dev/stderr"
		exit 1
	}
	our_figure = median_figure(ours)
	peer_figure = shown_ratio = range = verdict = ""
	ratio = 0
	if ($5 != "") {
		peer_figure = show(median_figure(peer), unit)
		if (find_ratios(ours, peer)) {
			shown_ratio = sprintf("%.2f", ratio)
			range = sprintf("%.2f to %.2f", ratio_min, ratio_max)
		}
	}
	if (target != "") {
		targets++
		met += ok = is_met(target)
		if (sub(/^figure /, "", target))
			target = target " " unit
		sub(/^ratio /, "", target)
		verdict = target (ok ? ", met" : ", **missed**")
	}
	row($3, $4, show(our_figure, unit), $5, peer_figure, shown_ratio, range, verdict)
}

END {
	if (targets)
		printf "\n%d of %d targets are met.\n", met, targets
}
