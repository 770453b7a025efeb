# bars.gnuplot: a bar for each contender, the fastest at the top, in a panel for
# each case, such as a number of clients. Ours have the accent colour. A bar is
# the median of the rounds; the line on it goes from the smallest to the largest.
# Variables: data (of bars.awk), contenders (their number), output, heading, label.
set datafile separator "\t"
stats data using 4 nooutput
cases = STATS_blocks
longest = 0
most = STATS_max
# Names are narrower than the digits that margins are counted in.
stats data using (longest = strlen(strcol(1)) > longest ? strlen(strcol(1)) : longest, 0) nooutput
height = 80 + cases * (contenders * 24 + 46)
set terminal svg size 960, height dynamic background rgb 'white' font 'sans-serif,13'
set output output
set multiplot layout cases,1 title heading . "\n " font ',17' noenhanced
set label 1 label at screen 0.5, screen (1 - 44.0 / height) center noenhanced
set lmargin (longest < 12 ? 12 : longest * 0.8 + 2)
set rmargin 8
set style fill solid noborder
set xrange [0:most * 1.12]
set yrange [-0.6:contenders - 0.4]
unset key
unset border
unset xtics
set ytics scale 0 noenhanced
short(rate) = rate < 1000 ? sprintf('%.0f', rate) : rate < 10000 ? sprintf('%.1f k', rate / 1000) : sprintf('%.0f k', rate / 1000)
name = ''
do for [i = 0:cases - 1] {
	stats data index i using (name = strcol(6), 0) nooutput
	set title name offset 0,-0.6 noenhanced
	plot data index i using ($2 / 2):0:($2 / 2):(0.36):($5 > 0 ? 0xc0392b : 0xaeb6bf):ytic(1) with boxxyerror linecolor rgb variable, \
		'' index i using 2:0:3:4 with xerrorbars pointtype 0 linecolor rgb '#444444', \
		'' index i using 4:0:(short($2)) with labels left offset 0.8,0
	unset label 1
}
unset multiplot
