# Lists the targets of a Makefile that is read twice: those of every day, then the rest under their headings.
BEGIN { FS = ":.*## "; count = split(every_day, order, " "); for (at in order) is_every_day[order[at]] = 1 }
NR == FNR { if (NF == 2) text[$1] = $2; next }
FNR == 1 { print "\nEvery day"; for (at = 1; at <= count; at++) print "  " order[at] "\t" text[order[at]] }
/^#@ / { heading = substr($0, 4) }
/^[a-z0-9-]+:.*## / && !($1 in is_every_day) { if (heading) print "\n" heading; heading = ""; print "  " $1 "\t" $2 }
