# The development commands of this repository; `make help` lists them. A command is implemented either here, in scripts/
# or in xtask/.

CARGO ?= cargo

.DEFAULT_GOAL := help
.PHONY: help build demo screens test test-long check schemas bench book install deb

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

build: ## build every program (debug)
	@scripts/need cargo cc
	$(CARGO) build --workspace --bins

demo: ## verify a small repository three times: one run passes, one fails, one drifts
	@scripts/need cargo cc git
	@scripts/demo

screens: ## generate the pictures in docs/screens from real runs
	@scripts/need cargo cc git python3 chromium tmux
	@scripts/screenshots
	@scripts/screens

test: ## run all tests; the last line of the output counts them
	@scripts/need cargo cc git setpriv python3
	@scripts/need --try make node npm venv pytest go sqlite3 gdb strace jq zstd script chromium systemd-nspawn faketime prometheus-client curl groff zsh fish xmllint shellcheck mkfs.btrfs mkfs.xfs filefrag
	@scripts/clients
	@$(CARGO) xtask test

test-long: ## run the long campaigns: SQL lists, ignore rules, and 500 runs with a concurrent hostile writer
	@scripts/need cargo cc git setpriv python3
	@scripts/need --try npm
	@scripts/clients
	PROCTOR_IGNORE_ROUNDS=2000 PROCTOR_IGNORE_SEED=100000 \
		$(CARGO) test -p proctor-snapshot --test trees -- 'ignore: generated'
	for seed in 18 101 202; do \
		PROCTOR_LISTS_CORPUS=6000 PROCTOR_LISTS_SEED=$$seed \
			$(CARGO) test -p proctor-sql --test lists --test duckdb -- corpus --nocapture || exit 1; \
	done
	$(CARGO) build --workspace --bins
	PROCTOR_HOSTILE_RUNS=500 $(CARGO) test -p proctor-tests --test whole -- stress:: --nocapture

check: ## check format, lints, dependencies, schemas, repository rules (xtask tidy) and documentation
	@scripts/need cargo cc git
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	@scripts/deny
	@$(CARGO) xtask schemas --check
	@$(CARGO) xtask tidy --check
	RUSTDOCFLAGS=-Dwarnings $(CARGO) doc --workspace --no-deps

schemas: ## generate schemas/ from the types
	@$(CARGO) xtask schemas

bench: ## run the benchmarks: attempt, daemon, edits, exec, gate, kill, leftovers, output, snapshot, step, deadline
	@scripts/need cargo cc git
	@bench/attempt
	@bench/daemon
	@bench/edits
	@bench/exec
	@bench/gate
	@bench/kill
	@bench/leftovers
	@bench/output
	@bench/snapshot
	@bench/step
	@bench/deadline

book: ## build the manual with mdBook in target/book
	@command -v mdbook >/dev/null || { echo "error: mdbook is not in PATH" >&2; echo "hint: run cargo install --locked mdbook" >&2; exit 1; }
	mdbook build

install: ## install to PREFIX (default /usr/local); DESTDIR, if set, is prepended to all paths
	@scripts/need cargo cc
	@scripts/install "$(or $(PREFIX),/usr/local)"

deb: ## build the Debian package in target/debian
	@scripts/need cargo cc
	@scripts/deb
