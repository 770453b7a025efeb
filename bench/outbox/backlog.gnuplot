# backlog.gnuplot: rate and memory of the relay while it delivers the backlog.
# Variables: data, output, heading.
set terminal svg size 960,640 dynamic background rgb 'white' font 'sans-serif,13'
set output output
set multiplot layout 2,1 title heading font ',17' noenhanced
set lmargin 12
set xlabel 'seconds'
set yrange [0:*]
set grid ytics linecolor rgb '#dddddd'
set border 3
set tics nomirror
unset key
stats data using 1:2 nooutput
start = STATS_min_x
seconds = start
events = STATS_min_y
# What was delivered since the sample before, in a second.
rate(x, y) = (d = x > seconds ? (y - events) / (x - seconds) : NaN, seconds = x, events = y, d)
set format y '%.0s %c'
set ylabel 'events a second'
plot data using ($1 - start):(rate($1, $2)) with lines linewidth 2 linecolor rgb '#c0392b'
set format y '%g'
set ylabel "MB of the relay's own"
plot data using ($1 - start):3 with lines linewidth 2 linecolor rgb '#c0392b'
unset multiplot
