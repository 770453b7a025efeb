# replace.awk: the functions and views of the install script's parts as an upgrade
# script needs them, CREATE OR REPLACE, and all comments.
#
# A statement begins at the start of a line, and ends with a line that ends in a
# semicolon outside of $$.  idempotency_announce is for the install script alone.

!copying && /^(CREATE (FUNCTION|VIEW)|COMMENT ON [A-Z]+) / {
	copying = 1
	skipping = /^CREATE FUNCTION idempotency_announce\(/
	sub(/^CREATE /, "CREATE OR REPLACE ")
}

copying {
	if (!skipping)
		print
	quotes += gsub(/\$\$/, "&")
	if (quotes % 2 == 0 && /;[ \t]*$/)
		copying = quotes = 0
}
