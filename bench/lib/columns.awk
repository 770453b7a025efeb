# columns.awk: the median figures of one section for gnuplot, a row for each
# case and a column for each contender; to be run with figures.awk. Its second
# file has the contenders, in order. Variable: section.

FILENAME == ARGV[1] && $1 == section && !($2 in seen_case) {
	seen_case[$2] = 1
	case_name[++cases] = $2
}

FILENAME == ARGV[2] { contender[++contenders] = $0 }

END {
	printf "case"
	for (j = 1; j <= contenders; j++)
		printf "\t%s", contender[j]
	for (i = 1; i <= cases; i++) {
		printf "\n%s", case_name[i]
		for (j = 1; j <= contenders; j++) {
			id = section FS case_name[i] FS contender[j]
			if (!(id in rounds)) {
				print "no figures to draw for: " id >"/dev/stderr"
				exit 1
			}
			printf "\t%.2f", median_figure(id)
		}
	}
	print ""
}
