# expiry.gnuplot: rate and size over time, of the three runs of the clean-up.
# Variables: directory, output, heading.
set terminal svg size 960,640 dynamic background rgb 'white' font 'sans-serif,13'
set output output
set multiplot layout 2,1 title heading font ',17' noenhanced
set lmargin 10
set xlabel 'seconds'
set yrange [0:*]
set grid ytics linecolor rgb '#dddddd'
set border 3
set tics nomirror
set key outside right top vertical Left reverse samplen 2
names = 'kept expiring deleting'
title_of(i) = i == 1 ? 'no key expires' : i == 2 ? 'as many expire as arrive' : 'batched DELETE'
array colour[3] = ['#aeb6bf', '#c0392b', '#5d6d7e']
do for [part in 'rates sizes'] {
	set format y (part eq 'rates' ? '%.0s %c' : '%g')
	set ylabel (part eq 'rates' ? 'new keys a second' : 'MB of table and indexes')
	plot for [i = 1:3] directory . word(names, i) . '.' . part using 0:1 with lines linewidth 2 \
		linecolor rgb colour[i] title title_of(i)
}
unset multiplot
