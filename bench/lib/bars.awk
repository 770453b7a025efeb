# bars.awk: the figures of one section for bars.gnuplot; to be run with
# figures.awk. Its second file has the contenders. Variable: section.
#
# A block for each case, and in it a line for each contender, the slowest first:
# contender, median, smallest and largest figure, 1 if it is ours, case.

FILENAME == ARGV[1] && $1 == section && !($2 in seen_case) {
	seen_case[$2] = 1
	case_name[++cases] = $2
}

FILENAME == ARGV[2] { contender[++contenders] = $0 }

END {
	OFS = "\t"
	for (i = 1; i <= cases; i++) {
		for (j = 1; j <= contenders; j++)
			note(j, section FS case_name[i] FS contender[j])
		for (j = 2; j <= contenders; j++)
			for (k = j; k > 1 && middle[order[k - 1]] > middle[order[k]]; k--)
				swap(k)
		if (i > 1)
			printf "\n\n"
		for (j = 1; j <= contenders; j++)
			print contender[order[j]], middle[order[j]], low[order[j]], high[order[j]],
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
