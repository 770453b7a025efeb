# ratios.awk: the smallest and the largest ratio of a comparison over the cases
# of a section, such as numbers of clients; to be run with figures.awk.
# Variables: section, case_name (how the cases begin), ours, peer, and limit,
# such as ">= 0.9", or "". The status is 1 if one ratio is not as limit says.
# Two digits are enough for a title; the table has more.

function two_digits(value) {
	return sprintf(value < 0.995 ? "%.2f" : value < 9.95 ? "%.1f" : "%.0f", value)
}

FILENAME == ARGV[1] && $1 == section && $3 == ours && index($2, case_name) == 1 && !seen[$2]++ {
	cases[++count] = $2
}

END {
	split(limit, part, " ")
	for (i = 1; i <= count; i++) {
		if (!find_ratios(section FS cases[i] FS ours, section FS cases[i] FS peer))
			continue
		smallest = found && smallest < ratio ? smallest : ratio
		largest = found && largest > ratio ? largest : ratio
		found = 1
		bad += limit != "" && !is_within(sprintf("%.2f", ratio) + 0, part[1], part[2] + 0)
	}
	if (!found) {
		print "no figures for " section ", " case_name ", " ours ", " peer >"/dev/stderr"
		exit 2
	}
	smallest = two_digits(smallest)
	largest = two_digits(largest)
	print smallest == largest ? smallest : smallest " to " largest
	exit bad > 0
}
