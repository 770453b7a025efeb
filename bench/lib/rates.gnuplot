# rates.gnuplot: rates of all contenders of each case, such as a number of clients.
# Variables: data, contenders (their number), output, heading, label.
set terminal svg size 960,420 dynamic background rgb 'white' font 'sans-serif,13'
set output output
set datafile separator "\t"
set title heading noenhanced
set style data histogram
set style histogram clustered gap 1.5
set style fill solid noborder
set ylabel label
set xrange [-0.6:*]
set yrange [0:*]
set grid ytics linecolor rgb '#dddddd'
set border 3
set tics nomirror
set key outside right top vertical Left reverse samplen 1 noenhanced
array colour[9] = ['#c0392b', '#2c3e50', '#5d7a99', '#7f8c8d', '#aeb6bf', '#d4a017', '#e8c872', '#a9c9a4', '#6b4e71']
plot for [i = 2:contenders + 1] data using i:xtic(1) title columnheader(i) linecolor rgb colour[i - 1]
