# The development commands of this repository; `make help` lists them. A command is implemented either here, in scripts/
# or in xtask/.

CARGO ?= cargo
# Not `cargo xtask`: if cargo builds only this package, its dependencies have other features than in the tests.
XTASK = $(or $(CARGO_TARGET_DIR),target)/debug/xtask
LINTS = -Dwarnings
# Makes cargo use what `cargo clippy` has checked instead of checking all packages again, as if clippy called it.
AS_CLIPPY = RUSTC_WORKSPACE_WRAPPER="$$(rustc --print sysroot)/bin/clippy-driver" \
	CLIPPY_ARGS=$(LINTS)__CLIPPY_HACKERY__
# Programs of the tests. Tests that need a missing program are skipped.
TEST_PROGRAMS = make node npm venv pytest go sqlite3 gdb strace jq zstd script chromium systemd-nspawn faketime \
	prometheus-client postgresql mariadb-server curl groff zsh fish xmllint shellcheck bwrap mkfs.btrfs mkfs.xfs filefrag
# Installs these programs and the third-party clients while cargo builds programs and tests.
BUILD_TESTS = { scripts/need --try $(TEST_PROGRAMS); scripts/clients; } & \
	$(CARGO) build --workspace --bins --tests; built=$$?; wait $$! && exit $$built

.DEFAULT_GOAL := help
.PHONY: help build demo screens test test-long check check-deps check-manifests schemas bench book install deb dist try-dist

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
	@$(BUILD_TESTS)
	@$(XTASK) test

test-long: ## run all variants and full campaigns, which a release requires; takes an hour or more
	@scripts/need cargo cc git setpriv python3
	@export PROCTOR_TEST_LONG=1; $(BUILD_TESTS)
	@$(XTASK) test-long

# `--workspace` and `--examples` make cargo use the same features as for the tests, so that it compiles a dependency once.
check: check-deps ## check format, lints, dependencies, schemas, repository rules (xtask tidy) and documentation
	@scripts/need cargo cc git
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- $(LINTS)
	@$(CARGO) build --quiet --workspace --bin xtask
	@$(XTASK) schemas --check
	@$(XTASK) tidy --check
	$(AS_CLIPPY) RUSTDOCFLAGS=-Dwarnings $(CARGO) doc --workspace --no-deps --lib --bins --examples

check-deps: ## check licences, bans, sources and advisories of dependencies, if cargo-deny is installed
	@scripts/need cargo
	@scripts/deny

check-manifests: ## check deploy/kubernetes against schemas and with proctord; names the parts that it cannot check
	@scripts/need python3
	@scripts/check-manifests

schemas: ## generate schemas/ from the types, and the types of the Python client from schemas/
	@scripts/need cargo python3
	@$(CARGO) xtask schemas
	@python3 python/generate_types.py

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

dist: ## build all files of a release in target/dist: archives, wheels, npm, deb, rpm, image, SBOM, checksums
	@scripts/need cargo cc git python3
	@scripts/dist

try-dist: ## install each file of target/dist in a clean Debian or Ubuntu, and verify a repository there; needs root
	@scripts/need python3 debootstrap
	@scripts/try-dist
