#!/bin/sh
# Executes `proctor` of the platform package, which is in a `node_modules` directory of this package or above it.
self=$(readlink -f "$0")
case $(uname -sm) in
"Linux x86_64") platform=linux-x64 ;;
"Linux aarch64") platform=linux-arm64 ;;
*)
    printf 'error: there is no build of Proctor for %s\nhint: Proctor runs on Linux, on x86_64 and aarch64\n' "$(uname -sm)" >&2
    exit 5
    ;;
esac
directory=$self
while [ -n "$directory" ]; do
    directory=${directory%/*}
    program=$directory/node_modules/@proctor-verify/$platform/bin/proctor
    [ -x "$program" ] && exec "$program" "$@"
done
printf 'error: the package `@proctor-verify/%s` is not installed\nhint: install again without `--omit=optional`\n' "$platform" >&2
exit 5
