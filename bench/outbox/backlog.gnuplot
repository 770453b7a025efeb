# backlog.gnuplot: rate and memory of the relay while it delivers the backlog.
# Columns of the data: seconds; events a second since the line before; MB.
# Variables: data, output, heading, label.
right = 30
load 'bench/lib/panels.gnuplot'
do for [part = 0:1] {
	caption = part == 0 ? 'Events a second' : "MB of the relay's own memory"
	eval panel
	plot data using 1:2 + part with lines linewidth 2 linecolor rgb '#c0392b' title caption
	unset label
}
unset multiplot
