# Build, install and test the extension.
#
#   make                    build against the pg_config on PATH, or PG_CONFIG=...
#   make install            into that server
#   make installcheck       pg_regress and isolation tests on a running server;
#                           REGRESS="..." ISOLATION="..." select some
#   make prove TESTS="..."  files of test/tap/t with the server in which it is
#                           installed, not as root
#   make check              the tests that find a wrong change, on private
#                           clusters; needs only make; minutes
#   make check-world        all tests, likewise; half an hour
#   make check SUITE=long   those that take minutes each, likewise
#   make check SUITE=citus CITUS_SOURCE=...
#                           tests with Citus, which is built from a source tree
#   make check SUITE=packages
#                           builds packages of each kind, and installs them in
#                           new root directories; as root
#   make check SUITE=debian13
#                           make check and make demo on a new Debian 13; as root
#   make dist               the archive for PGXN
#   make models             spin searches the protocols, in larger models
#   make valgrind           pg_regress and more under valgrind, likewise
#   make mutants            wrong changes of the code, which tests have to
#                           notice, likewise; TESTS="name ..." tries some
#   make soak               the crash tests for SOAK_SECONDS (600) each, likewise
#   make coverage           the suites that run the server, and a table of the
#                           lines and branches of src/ that they reach; fails
#                           below 90 % of lines
#   make indent             formats the C sources; needs pg_bsd_indent, which is
#                           a package on Debian 12, and part of the server later
#   make demo               the demonstration, likewise; WATCH=1 shows it in a
#                           browser, KEEP=1 leaves it running
#   make bench              measurements, also of other systems, likewise
#   make docs               the documentation as a web site, in the directory site
#
# "make WERROR=1" turns warnings into errors.

# The directory of this file. Objects and scripts go to the current directory,
# which may be another one. Values from the command line are overridden. Only
# sources are searched here (vpath below): VPATH would also find objects that a
# build in the source directory has left, perhaps for another server.
override srcdir := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))
override VPATH :=

# These targets install what they need, including a compiler and a server, so
# they must work where neither exists: nothing below may be read for them.
ifneq ($(filter check check-world coverage models mutants valgrind soak demo bench docs,$(MAKECMDGOALS)),)

.PHONY: check check-world coverage models mutants valgrind soak demo bench docs
check check-world coverage:
	@$(srcdir)/test/run $@ $(SUITE) $(TESTS)
models:
	@$(srcdir)/test/run check-world models $(or $(TESTS),all)
mutants:
	@$(srcdir)/test/run check-world mutants $(TESTS)
valgrind:
	@$(srcdir)/test/run check-world valgrind $(or $(TESTS),all)
soak:
	@$(srcdir)/test/run soak
demo:
	@$(srcdir)/demo/run
bench:
	@$(srcdir)/bench/run $(BENCH)
docs:
	@$(srcdir)/docs/site/build

else

EXTENSION = idempotency
EXTVERSION := $(shell sed -n "s/^default_version = '\(.*\)'/\1/p" $(srcdir)/idempotency.control)
MODULE_big = idempotency
PGFILEDESC = "idempotency - idempotency keys, transactional outbox and stock reservations"

OBJS := $(patsubst $(srcdir)/%.c,%.o,$(sort $(wildcard $(srcdir)/src/*.c $(srcdir)/src/*/*.c)))
OUR_HEADERS := $(wildcard $(srcdir)/src/*.h $(srcdir)/src/*/*.h)
ifeq ($(OBJS),)
$(error there are no sources in $(srcdir)/src)
endif

# In the order of creation: functions need the tables of their own module and of
# the modules before it.
SQL_PARTS := $(addprefix $(srcdir)/src/, \
	base/functions.sql \
	claim/tables.sql \
	base/audit.sql \
	claim/functions.sql \
	claim/status.sql \
	outbox/tables.sql \
	outbox/audit.sql \
	outbox/functions.sql \
	outbox/segments.sql \
	outbox/status.sql \
	relay/functions.sql \
	stock/tables.sql \
	stock/functions.sql \
	stock/compaction.sql \
	stock/status.sql \
	base/status.sql \
	base/statistics.sql \
	base/privileges.sql)
LAST_SQL := $(addprefix $(srcdir)/src/base/, closed.sql silence.sql announce.sql)
INSTALL_SCRIPT_SQL = $(EXTENSION)--$(EXTVERSION).sql

# An upgrade script, from each version to this one: the locks, the steps from
# there on, which are written by hand, then every function, view and comment
# again, and the parts in UPGRADE_END.
UPGRADE_STEPS := $(sort $(wildcard $(srcdir)/src/upgrade/*--*.sql))
UPGRADE_LOCK := $(srcdir)/src/upgrade/lock.sql
UPGRADE_END := $(addprefix $(srcdir)/src/upgrade/, revoke.sql repair.sql) $(LAST_SQL)
UPGRADE_SCRIPTS_SQL := $(foreach step,$(notdir $(UPGRADE_STEPS)),$(EXTENSION)--$(firstword $(subst --, ,$(step)))--$(EXTVERSION).sql)
DATA_built = $(INSTALL_SCRIPT_SQL) $(UPGRADE_SCRIPTS_SQL)

REGRESS_ALL := $(sort $(patsubst $(srcdir)/sql/%.sql,%,$(wildcard $(srcdir)/sql/*.sql)))
REGRESS := $(filter extension,$(REGRESS_ALL)) $(filter-out extension,$(REGRESS_ALL))
REGRESS_OPTS = --no-locale --encoding=UTF8

# Left out on a running server: tests that prepare transactions, which a server
# does not allow by default, tests that take steps of the sweeper by hand, since
# a sweeper runs there, and tests that make deliveries by hand, since a relay
# would try them. "make check" runs all of them.
ISOLATION_PRIVATE = PREPARE TRANSACTION|INSERT INTO outbox_delivery|outbox_ping\(|(idem|outbox|stock)_(expire|serve_item|migrate|switch|retire|truncate|pass_over|compact|forget)\(|idempotency_ring_
ISOLATION := $(sort $(patsubst $(srcdir)/test/isolation/specs/%.spec,%,\
	$(shell grep -LE '$(ISOLATION_PRIVATE)' $(srcdir)/test/isolation/specs/*.spec)))
ISOLATION_OPTS = --no-locale --encoding=UTF8 --inputdir=$(srcdir)/test/isolation --outputdir=output_iso --load-extension=$(EXTENSION)
EXTRA_CLEAN = output_iso

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
ifeq ($(PGXS),)
$(error $(PG_CONFIG) does not run; install the server's development package or give PG_CONFIG=/path/to/pg_config)
endif

# The server's headers are the system's, so that warnings are about our code.
PG_CPPFLAGS = -DEXTVERSION='"$(EXTVERSION)"' -I$(srcdir)/src -isystem $(shell $(PG_CONFIG) --includedir-server)
# Callbacks have the parameters that the server passes, used or not. Only
# symbols that the server looks up are exported, since another library may have
# a function of the same name.
PG_CFLAGS = -fvisibility=hidden -Wall -Wextra -Wno-unused-parameter $(if $(WERROR),-Werror) $(if $(COVERAGE),--coverage -O0)
SHLIB_LINK = -lcurl -lssl -lcrypto $(if $(COVERAGE),--coverage)

# Bitcode lets JIT inline functions into expressions, which would not make ours
# faster. Without bitcode, clang is not needed.
ifneq ($(origin with_llvm),command line)
override with_llvm = no
endif

include $(PGXS)

# Tests name internal objects without their schema; see test/postgresql.conf.
installcheck: export PGOPTIONS += -c search_path="$$user",public,idempotency_internal

# Each test makes its own cluster.  Directories must be absolute.
PROVE_DIR = $(CURDIR)/tmp_check
.PHONY: prove
prove:
	@rm -rf $(PROVE_DIR) && mkdir -p $(PROVE_DIR)/log
	cd $(srcdir) && PATH="$(bindir):$$PATH" PG_REGRESS=$(dir $(PGXS))../test/regress/pg_regress \
		TESTDIR=$(CURDIR) TESTDATADIR=$(PROVE_DIR) TESTLOGDIR=$(PROVE_DIR)/log \
		prove --timer -I $(dir $(PGXS))../test/perl -I test/tap \
		$(or $(TESTS:%=test/tap/t/%.pl),$(error name some tests: make prove TESTS="wake"))

# What is published on PGXN: the last commit.
.PHONY: dist
dist:
	git -C $(srcdir) archive --format=zip --prefix=$(EXTENSION)-$(EXTVERSION)/ \
		-o $(CURDIR)/$(EXTENSION)-$(EXTVERSION).zip HEAD

.PHONY: indent
indent: $(shlib)
	PATH="$$PATH:$(shell $(PG_CONFIG) --bindir)" $(srcdir)/test/lib/indent $< $(OBJS:%.o=$(srcdir)/%.c) $(OUR_HEADERS)

vpath %.c $(srcdir)
vpath %.control $(srcdir)

OBJECT_DIRS := $(sort $(dir $(OBJS)))
$(OBJECT_DIRS):
	mkdir -p $@

$(OBJS): $(OUR_HEADERS) $(srcdir)/idempotency.control | $(OBJECT_DIRS)

$(INSTALL_SCRIPT_SQL): $(SQL_PARTS) $(LAST_SQL) $(srcdir)/Makefile
	printf '%s\n\n' '\echo Use "CREATE EXTENSION $(EXTENSION)" to load this file. \quit' > $@.tmp
	cat $(SQL_PARTS) $(LAST_SQL) >> $@.tmp
	mv $@.tmp $@

$(UPGRADE_SCRIPTS_SQL): $(EXTENSION)--%--$(EXTVERSION).sql: $(UPGRADE_LOCK) $(UPGRADE_STEPS) $(srcdir)/src/upgrade/replace.awk $(UPGRADE_END) $(SQL_PARTS) $(srcdir)/Makefile
	printf '%s\n\n' '\echo Use "ALTER EXTENSION $(EXTENSION) UPDATE" to load this file. \quit' > $@.tmp
	cat $(UPGRADE_LOCK) >> $@.tmp
	cat $$(printf '%s\n' $(UPGRADE_STEPS) | sed -n '/\/$*--/,$$p') >> $@.tmp
	awk -f $(srcdir)/src/upgrade/replace.awk $(SQL_PARTS) >> $@.tmp
	cat $(UPGRADE_END) >> $@.tmp
	mv $@.tmp $@

endif
