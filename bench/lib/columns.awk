# columns.awk: the median figures of one section for gnuplot, a row for each
# case and a column for each contender; to be run with figures.awk.
# Variable: section.

$1 == section {
	if (!($2 in seen_case)) {
		seen_case[$2] = 1
		case_name[++cases] = $2
	}
	if (!($3 in seen_contender)) {
		seen_contender[$3] = 1
		contender[++contenders] = $3
	}
}

END {
	printf "case"
	for (j = 1; j <= contenders; j++)
		printf "\t%s", contender[j]
	for (i = 1; i <= cases; i++) {
		printf "\n%s", case_name[i]
		for (j = 1; j <= contenders; j++)
			printf "\t%.2f", median_figure(section FS case_name[i] FS contender[j])
	}
	print ""
}
