# The commands of this repository. `make help` lists them; what each does stands in one place:
# here, in scripts/ or in xtask/.

CARGO ?= cargo

.DEFAULT_GOAL := help
.PHONY: help build demo screens test test-long check schemas bench book install deb

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

build: ## build every program (debug)
	@scripts/need cargo cc
	$(CARGO) build --workspace --bins

demo: ## verify a small repository three times: it passes, fails, drifts
	@scripts/need cargo cc git
	@scripts/demo

screens: ## make the pictures of docs/screens from real runs
	@scripts/need cargo cc git python3 chromium tmux
	@scripts/screenshots
	@scripts/screens

test: ## run every test; the last line counts them
	@scripts/need cargo cc git setpriv python3
	@scripts/need --try make node npm venv pytest go sqlite3 gdb strace jq zstd script chromium systemd-nspawn faketime prometheus-client curl groff zsh fish xmllint shellcheck mkfs.btrfs mkfs.xfs filefrag
	@scripts/clients
	@$(CARGO) xtask test

test-long: ## run the longer campaigns: lists of tables and columns over 3 x 6,000 statements for each engine, ignore rules over 8,000 trees, 500 runs beside a hostile writer
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

check: ## format, lints, dependencies, schemas, rules of the house, documentation
	@scripts/need cargo cc git
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	@scripts/deny
	@$(CARGO) xtask schemas --check
	@$(CARGO) xtask tidy --check
	RUSTDOCFLAGS=-Dwarnings $(CARGO) doc --workspace --no-deps

schemas: ## write schemas/ from the types
	@$(CARGO) xtask schemas

bench: ## measure attempts, daemons, edits, commands, gates, kills, leftovers, output, snapshots, steps, deadlines
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

book: ## build the manual as a book, target/book
	@command -v mdbook >/dev/null || { echo "error: there is no mdbook" >&2; echo "hint: cargo install --locked mdbook" >&2; exit 1; }
	mdbook build

install: ## install below PREFIX (/usr/local), DESTDIR before it
	@scripts/need cargo cc
	@scripts/install "$(or $(PREFIX),/usr/local)"

deb: ## build the Debian package, target/debian
	@scripts/need cargo cc
	@scripts/deb
