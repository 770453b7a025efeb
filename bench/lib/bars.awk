# bars.awk: the figures of one section for bars.gnuplot; to be run with
# figures.awk. Its second file has the contenders, each with "|" and its name in
# the plot, if that is another. Variables: section; only, the case to draw, or
# "" for all; and keep_order: 1 if the contenders are not sorted.
#
# A block for each case, and in it a line for each contender, from the bottom of
# the plot to its top, so that the slowest is first: name, median, smallest and
# largest figure, 1 if it is ours, case.

FILENAME == ARGV[1] && $1 == section && (only == "" || $2 == only) && !($2 in seen_case) {
	seen_case[$2] = 1
	case_name[++cases] = $2
}

FILENAME == ARGV[2] {
	at = index($0 "|", "|")
	contender[++contenders] = substr($0, 1, at - 1)
	name[contenders] = at < length($0) ? substr($0, at + 1) : $0
}

END {
	OFS = "\t"
	for (i = 1; i <= cases; i++) {
		for (j = 1; j <= contenders; j++)
			note(j, section FS case_name[i] FS contender[j])
		for (j = 1; keep_order && j <= contenders; j++)
			order[j] = contenders + 1 - j
		for (j = 2; !keep_order && j <= contenders; j++)
			for (k = j; k > 1 && middle[order[k - 1]] > middle[order[k]]; k--)
				swap(k)
		if (i > 1)
			printf "\n\n"
		for (j = 1; j <= contenders; j++)
			print name[order[j]], middle[order[j]], low[order[j]], high[order[j]],
				contender[order[j]] ~ /^(idem|outbox|stock)_|^relay|^ours|^[0-9]+ relays?$/, case_name[i]
	}
}

function note(j, id,    n) {
	if (!(id in rounds)) {
		print "no figures to draw for: " id >"/dev/stderr"
		exit 1
	}
	order[j] = j
	middle[j] = median_figure(id)
	low[j] = high[j] = middle[j]
	for (n = 1; n <= rounds[id]; n++) {
		if (figure[id, n] + 0 < low[j])
			low[j] = figure[id, n] + 0
		if (figure[id, n] + 0 > high[j])
			high[j] = figure[id, n] + 0
	}
}

function swap(k,    other) {
	other = order[k]
	order[k] = order[k - 1]
	order[k - 1] = other
}
