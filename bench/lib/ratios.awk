# ratios.awk: the smallest and the largest ratio of a comparison over the cases
# of a section, such as numbers of clients; to be run with figures.awk.
# Variables: section, case_name (how the cases begin), ours, peer, and limit,
# such as ">= 0.9", or "". The status is 1 if one ratio is not as limit says.

FILENAME == ARGV[1] && $1 == section && $3 == ours && index($2, case_name) == 1 && !seen[$2]++ {
	cases[++count] = $2
}

END {
	split(limit, part, " ")
	for (i = 1; i <= count; i++) {
		if (!find_ratios(section FS cases[i] FS ours, section FS cases[i] FS peer))
			continue
		ratio = sprintf("%.2f", ratio) + 0
		smallest = found && smallest < ratio ? smallest : ratio
		largest = found && largest > ratio ? largest : ratio
		found = 1
		bad += limit != "" && !is_within(ratio, part[1], part[2] + 0)
	}
	if (!found) {
		print "no figures for " section ", " case_name ", " ours ", " peer >"/dev/stderr"
		exit 2
	}
	print smallest == largest ? sprintf("%.2f", smallest) : sprintf("%.2f to %.2f", smallest, largest)
	exit bad > 0
}
