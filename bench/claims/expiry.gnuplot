# expiry.gnuplot: rate and size over time, of the three runs of the clean-up.
# Columns of the data: second; rates of the runs; sizes.
# Variables: data, output, heading, label.
right = 150
load 'bench/lib/panels.gnuplot'
stats data using 1 nooutput
seconds = STATS_max
set xrange [0:seconds]
array name[3] = ['no key expires', 'keys expire', 'DELETE in batches']
array colour[3] = ['#a3adb6', '#c0392b', '#2c3e50']
array ink[3] = ['#6f7b85', '#c0392b', '#2c3e50']
array last[3]
array place[3]
array order[3] = [1, 2, 3]
do for [part = 0:1] {
	most = 0
	set yrange [*:*]
	do for [i = 1:3] {
		stats data using (valid(1 + 3 * part + i) ? (last[i] = column(1 + 3 * part + i)) : NaN) nooutput
		most = STATS_max > most ? STATS_max : most
	}
	most = most * 1.1

	# The name of a line is at its end, but not on top of another name.
	do for [pass = 1:2] {
		do for [i = 1:2] {
			if (last[order[i]] > last[order[i + 1]]) {
				other = order[i]
				order[i] = order[i + 1]
				order[i + 1] = other
			}
		}
	}
	place[order[1]] = last[order[1]]
	do for [i = 2:3] {
		lowest = place[order[i - 1]] + most * 0.1
		place[order[i]] = last[order[i]] > lowest ? last[order[i]] : lowest
	}
	shift = (place[order[3]] - last[order[3]]) / 2
	do for [i = 1:3] {
		set label 10 + i name[i] at graph 1.01, first place[i] - shift textcolor rgb ink[i] noenhanced
	}

	set yrange [0:most]
	if (part == 0) {
		set object 1 rectangle from first 0, graph 0 to first seconds / 4, graph 1 behind \
			fillcolor rgb '#eeeeee' fillstyle solid noborder
	}
	caption = part == 0 ? 'New keys a second. The first quarter (shaded) does not count' : 'MB of table and indexes'
	eval panel
	plot for [i = 1:3] data using 1:1 + 3 * part + i with lines linewidth 2 linecolor rgb colour[i] title name[i]
	unset label
	unset object
}
unset multiplot
