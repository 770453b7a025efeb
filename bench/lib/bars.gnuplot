# bars.gnuplot: a bar for each contender, in a panel for each case, such as a
# number of clients. Ours have the accent colour. A bar is the median of the
# rounds; the line on it goes from the smallest to the largest.
# Variables: data (of bars.awk), output, heading, label.
set datafile separator "\t"
stats data using 4 nooutput
cases = STATS_blocks
contenders = STATS_records / cases
most = STATS_max
longest = 0
stats data using (longest = strlen(strcol(1)) > longest ? strlen(strcol(1)) : longest, 0) nooutput
# In pixels, from the top. A single case has no title of its own.
width = 960
top = 60
caption = cases > 1 ? 28 : 4
panel = caption + contenders * 22 + 10
height = top + cases * panel
# As wide as the names with capital letters are.
left = longest * 7.4 + 24 < 110 ? 110 : longest * 7.4 + 24
across(x) = real(x) / width
down(y) = 1 - real(y) / height
set terminal svg size width, height dynamic background rgb 'white' font 'sans-serif,13'
set output output
set multiplot
set lmargin at screen across(left)
set rmargin at screen across(width - 60)
set style fill solid noborder
set xrange [0:most * 1.05]
set yrange [-0.5:contenders - 0.5]
unset key
unset border
unset xtics
set ytics scale 0 noenhanced
short(rate) = rate < 999.5 ? sprintf('%.0f', rate) : rate < 9950 ? sprintf('%.1f k', rate / 1000) : sprintf('%.0f k', rate / 1000)
name = ''
do for [i = 0:cases - 1] {
	stats data index i using (name = strcol(6), 0) nooutput
	if (i == 0) {
		set label 1 heading at screen across(16), screen down(26) font ',17' noenhanced
		set label 2 (cases > 1 ? label : label . ', ' . name) at screen across(16), screen down(48) noenhanced
	}
	if (cases > 1) {
		set label 3 name at screen across(left), screen down(top + i * panel + 18) font ',14' noenhanced
	}
	set tmargin at screen down(top + i * panel + caption)
	set bmargin at screen down(top + i * panel + caption + contenders * 22)
	plot data index i using ($2 / 2):0:($2 / 2):(0.36):($5 > 0 ? 0xc0392b : 0xaeb6bf):ytic(1) with boxxyerror \
			linecolor rgb variable title 'median', \
		'' index i using 2:0:3:4 with xerrorbars pointtype 0 linecolor rgb '#444444' title 'smallest to largest', \
		'' index i using 4:0:(short($2)) with labels left offset 0.8,0 title 'median'
	unset label
}
unset multiplot
