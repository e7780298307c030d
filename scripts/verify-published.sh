#!/bin/sh
# Verifies the sources of published third-party crates with a built proctor.
#
#   scripts/verify-published.sh [crate ...]
#
# Copies each crate from cargo's registry directory (the last unpacked version) to a git repository in a temporary
# directory, with a spec of two skills: `cargo check` and `cargo test`. Verifies it offline in the sandbox. Prints one
# line for each crate. Exits with 1 if a run neither passed, failed, drifted nor timed out. Skips crates that are not
# unpacked, and names them.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)
proctor=${PROCTOR:-$here/target/debug/proctor}
[ -x "$proctor" ] || { echo "error: \`$proctor\` is not a program" >&2; echo "hint: run \`make build\`, or set PROCTOR" >&2; exit 2; }
registry=${CARGO_HOME:-$HOME/.cargo}/registry/src
[ $# -gt 0 ] || set -- shlex strsim
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

spec() {
    cat <<'SPEC'
version: 1
toolchains:
  rust: { required: [ { cmd: ["cargo", "--version"], version: ">=1.80" } ] }
defaults: { timeout_ms: 300000, network: deny, read_only: tracked, env: { CARGO_TERM_COLOR: never } }
profiles: { pr: { include: [verify.build, verify.test] } }
skills:
  verify.build:
    determinism: D1
    tier: 1
    caches: [target]
    steps:
      - { name: cargo_check, cmd: ["cargo", "check", "--offline"] }
  verify.test:
    determinism: D1
    tier: 1
    caches: [target]
    steps:
      - { name: cargo_test, cmd: ["cargo", "test", "--offline"] }
SPEC
}

for crate in "$@"; do
    source=$(find "$registry" -mindepth 2 -maxdepth 2 -type d -name "$crate-[0-9]*" 2>/dev/null | sort | tail -n 1)
    if [ -z "$source" ]; then
        echo "skipped $crate: cargo's registry directory does not contain its sources"
        continue
    fi
    repo=$work/$(basename "$source")
    cp -r "$source" "$repo"
    rm -f "$repo/.cargo-ok"
    mkdir -p "$repo/spec"
    spec > "$repo/spec/verification.yaml"
    printf 'target\nCargo.lock\n' > "$repo/.gitignore"
    git -C "$repo" init -q
    git -C "$repo" -c core.autocrlf=false add -A -f .
    git -C "$repo" -c user.name=proctor -c user.email=proctor@localhost commit -q -m "as published"
    status=0
    "$proctor" run --repo "$repo" --profile pr --state-dir "$work/state" > "$work/out" 2> "$work/err" || status=$?
    echo "$(basename "$source"): exit $status, $(tail -n 1 "$work/out")"
    case $status in
        0) ;;
        1|3|4) sed 's/^/    /' "$work/out" ;;
        *) sed 's/^/    /' "$work/out" "$work/err"; failed=1 ;;
    esac
done
exit $failed
