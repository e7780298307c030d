#!/bin/sh
# Installs a published archive of Proctor: `install.sh [PREFIX]`, by default to ~/.local (as root, to /usr/local).
#
#   VERSION             the version, by default the version of this file
#   PROCTOR_SHA256      the expected checksum of the archive, if you know it from another source
#   PROCTOR_DOWNLOADS   where the releases are: a URL of the scheme https or file
#   PROCTOR_CACHE       a directory that keeps the archive; an archive in it with the right checksum is not downloaded
#
# Extracts the archive only if its checksum is correct. The released copy of this file contains the checksums of its
# version. For other versions, the script downloads SHA256SUMS. Needs tar, gzip, sha256sum, and curl or wget.
set -eu

# scripts/dist fills in these two lines.
version=''
sums=''

die() {
    printf 'error: %s\nhint: %s\n' "$1" "$2" >&2
    exit 1
}

# All commands are in a function, so that the shell executes nothing if the download of this file is incomplete.
main() {
    wanted=${VERSION:-$version}
    [ -n "$wanted" ] || die "no version is given" "set VERSION, for example \`VERSION=0.1.0\`"
    [ "$wanted" = "$version" ] || sums=''
    if [ "$(id -u)" = 0 ]; then prefix=/usr/local; else prefix=${HOME:-}/.local; fi
    prefix=${1:-$prefix}
    case $prefix in
    /*) ;;
    *) prefix=$PWD/$prefix ;;
    esac
    case $(uname -sm) in
    "Linux x86_64") target=x86_64-unknown-linux-gnu ;;
    "Linux aarch64") target=aarch64-unknown-linux-gnu ;;
    *) die "there is no build of Proctor for $(uname -sm)" "Proctor runs on Linux, on x86_64 and aarch64" ;;
    esac
    for tool in tar gzip sha256sum; do
        command -v $tool >/dev/null || die "\`$tool\` is not in PATH" "install it"
    done
    name=proctor-$wanted-$target
    from=${PROCTOR_DOWNLOADS:-https://github.com/proctor-verify/proctor/releases/download}/v$wanted
    place=$(mktemp -d "${TMPDIR:-/tmp}/proctor-install.XXXXXX")
    trap 'rm -rf "$place"' EXIT

    expected=${PROCTOR_SHA256:-}
    if [ -z "$expected" ]; then
        [ -n "$sums" ] || sums=$(download "$from/SHA256SUMS" "$place/sums" && cat "$place/sums") ||
            die "\`$from/SHA256SUMS\` cannot be downloaded" "check that version $wanted is released, and the network"
        expected=$(printf '%s\n' "$sums" | sed -n "s/^\([0-9a-f]\{64\}\)  $name\.tar\.gz\$/\1/p")
        [ -n "$expected" ] || die "version $wanted has no archive for $target" "build from source: see docs/install.md"
    fi
    archive=$place/$name.tar.gz
    cached=${PROCTOR_CACHE:+$PROCTOR_CACHE/$name.tar.gz}
    if [ -n "$cached" ] && [ -f "$cached" ] && [ "$(checksum "$cached")" = "$expected" ]; then
        archive=$cached
    else
        download "$from/$name.tar.gz" "$archive" ||
            die "\`$from/$name.tar.gz\` cannot be downloaded" "check that version $wanted is released, and the network"
        actual=$(checksum "$archive")
        [ "$actual" = "$expected" ] ||
            die "the archive has the checksum $actual, not $expected" "do not use it; download again, and report it if the error remains"
        if [ -n "$cached" ]; then
            mkdir -p "$PROCTOR_CACHE"
            cp "$archive" "$cached.new"
            mv "$cached.new" "$cached"
        fi
    fi

    tar -xzf "$archive" -C "$place"
    for unit in "$place/$name"/lib/systemd/*/proctord.service; do
        [ -f "$unit" ] || continue
        sed "s|/usr/local/bin/proctord|$prefix/bin/proctord|" "$unit" >"$unit.new"
        mv "$unit.new" "$unit"
    done
    # Replaces each file instead of writing to it, because a program may be running.
    (cd "$place/$name" && find . -type f) | while IFS= read -r file; do
        mkdir -p "$prefix/$(dirname "$file")"
        cp -p "$place/$name/$file" "$prefix/$file.new"
        mv -f "$prefix/$file.new" "$prefix/$file"
    done
    echo "installed Proctor $wanted to $prefix; run \`$prefix/bin/proctor doctor\` to check the sandbox on this machine"
}

download() {
    case $1 in
    file://*) cp "${1#file://}" "$2" 2>/dev/null ;;
    *)
        if command -v curl >/dev/null; then
            curl -fsSL --proto '=https' --retry 3 -o "$2" "$1"
        elif command -v wget >/dev/null; then
            wget -q -O "$2" "$1"
        else
            die "neither \`curl\` nor \`wget\` is in PATH" "install one of them"
        fi
        ;;
    esac
}

checksum() {
    sha256sum "$1" | cut -d ' ' -f 1
}

main "$@"
