# figures.awk: reads what lib/measure has noted down, the first file on the
# command line, for table.awk and bars.awk.
#
# An id is a section, a case and a contender; figure[id, n] is its figure of
# the nth round.

BEGIN { FS = "\t" }

function sort(list, n,    i, j, value) {
	for (i = 2; i <= n; i++) {
		value = list[i] + 0
		for (j = i - 1; j > 0 && list[j] > value; j--)
			list[j + 1] = list[j]
		list[j + 1] = value
	}
}

function median(list, n) {
	sort(list, n)
	return n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2
}

function median_figure(id,    list, i) {
	for (i = 1; i <= rounds[id]; i++)
		list[i] = figure[id, i] + 0
	return median(list, rounds[id])
}

FILENAME == ARGV[1] {
	id = $1 FS $2 FS $3
	figure[id, ++rounds[id]] = $4
}

# Sets ratio, ratio_min and ratio_max; false if one would be over nothing.
function find_ratios(ours, peer,    list, n, i) {
	n = rounds[ours] < rounds[peer] ? rounds[ours] : rounds[peer]
	if (n == 0)
		return 0
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

function is_within(value, operator, limit) {
	return operator == ">=" ? value >= limit : value <= limit
}
