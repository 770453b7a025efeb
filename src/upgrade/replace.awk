# replace.awk: prints the functions, procedures, views and comments of the install script's
# parts as an upgrade script needs them: CREATE OR REPLACE.
#
# A statement begins at the start of a line, and ends with a line that ends in a
# semicolon outside of $$.

!copying && /^(CREATE (FUNCTION|PROCEDURE|VIEW)|COMMENT ON) / {
	copying = 1
	sub(/^CREATE /, "CREATE OR REPLACE ")
}

copying {
	print
	quotes += gsub(/\$\$/, "&")
	if (quotes % 2 == 0 && /;[ \t]*$/)
		copying = quotes = 0
}
