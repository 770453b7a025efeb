# targets.awk: which targets were missed; to be run with figures.awk. Its second
# file has the lines of the report, its third is targets.md. Variables: subject,
# and all: 1 if all parts were run, so that each target needs figures.
#
# The digits that a report shows decide.

# Whether a text is as a cell says, in which "\*" stands for anything.
function fits(text, cell) {
	gsub(/[][().+?^$|]/, "\\\\&", cell)
	gsub(/\\\*/, ".*", cell)
	return text ~ "^" cell "$"
}

function without_note(section) {
	sub(/ \(.*/, "", section)
	return section
}

function judge(id, target,    part, value, ours, peer) {
	split(target, part, " ")
	ours = section_of[id] FS case_of[id] FS contender_of[id]
	peer = section_of[id] FS case_of[id] FS peer_of[id]
	value = median_figure(ours)
	if (part[1] == "ratio") {
		if (!find_ratios(ours, peer))
			return
		value = ratio
	}
	value = sprintf("%.2f", value) + 0
	judged++
	if (!is_within(value, part[2], part[3] + 0))
		missed[++misses] = sprintf("%s: %s, %s%s: %s is %s", without_note(section_of[id]), case_of[id],
			contender_of[id], peer_of[id] == "" ? "" : " against " peer_of[id], target, value)
}

FILENAME == ARGV[2] && $1 == "compare" {
	id = ++comparisons
	section_of[id] = $2
	case_of[id] = $3
	contender_of[id] = $4
	peer_of[id] = $5
}

FILENAME == ARGV[3] && /^## / { in_subject = $0 == "## " subject }

FILENAME == ARGV[3] && in_subject && / [<>]= / {
	count = split($0, cell, / *\| */)
	known = 0
	for (id = 1; id <= comparisons; id++) {
		if (fits(section_of[id], cell[2]) && fits(case_of[id], cell[3]) &&
			fits(contender_of[id], cell[4]) && fits(peer_of[id], cell[5])) {
			judge(id, cell[6])
			known = 1
		}
	}
	unknown += !known
}

END {
	printf "%s: %d of %d targets missed%s", subject, misses, judged,
		all && unknown ? sprintf(", %d lines of targets.md without figures", unknown) : ""
	for (i = 1; i <= misses; i++)
		printf "%s%s", i == 1 ? ": " : "; ", missed[i]
	print ""
}
