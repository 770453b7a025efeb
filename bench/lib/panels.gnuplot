# panels.gnuplot: how two panels over time look, one below the other; to be
# loaded. "panel" is then evaluated before each plot, with part, 0 or 1, and
# caption, the title of the panel.
# Variables: output, heading, label, and right, the pixels beside the panels.
width = 960
height = 580
across(x) = real(x) / width
down(y) = 1 - real(y) / height
set terminal svg size width, height dynamic background rgb 'white' font 'sans-serif,13'
set output output
set datafile separator "\t"
set multiplot
set lmargin at screen across(64)
set rmargin at screen across(width - right)
set yrange [0:*]
set grid ytics linecolor rgb '#dddddd'
set border 3
set tics nomirror scale 0.5
unset key
panel = "set tmargin at screen down(98 + part * 244); set bmargin at screen down(278 + part * 244);" . \
	"set format y (part == 0 ? '%.0s %c' : '%g'); set xlabel (part == 0 ? '' : 'seconds') offset 0,0.5;" . \
	"set label 3 caption at screen across(16), screen down(82 + part * 244) font ',14' noenhanced;" . \
	"if (part == 0) { set label 1 heading at screen across(16), screen down(26) font ',17' noenhanced;" . \
	"set label 2 label at screen across(16), screen down(48) noenhanced }"
