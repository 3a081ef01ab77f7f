#!/usr/bin/env bash
# Can someone else build on these packages? Packages every crate of the workspace, unpacks them, builds them all, and
# runs scripts/outside, a crate that uses them as a stranger would. The build takes nothing from this repository except
# the packages and the lock file, so that the versions are those of the gate. It also refuses dependencies that ask for a later
# Rust than ours. It needs no network.
#
#   scripts/check_packages.sh          builds and runs, in target/outside: a second run compiles only what changed
#   scripts/check_packages.sh types    checks the types, with the dependencies that the lints have checked already
#
# CARGO may name another cargo.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
cargo=${CARGO:-cargo}
work=target/outside
case ${1:-} in
    '' | types) ;;
    *) echo "error: $1: expected types, or nothing" >&2; exit 2 ;;
esac

# The oldest Rust that the packages promise to work with.
oldest=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
toolchain=''
if [ "${1:-}" != types ] && command -v rustup >/dev/null; then
    toolchain=$(rustup toolchain list | sed -n "s/^\($oldest\(\.[0-9]*\)\?-[^ ]*\).*/\1/p" | head -n 1)
fi
if [ -n "$toolchain" ]; then
    echo "with Rust $oldest, the oldest that is promised"
    cargo="rustup run $toolchain cargo"
else
    echo "with $(rustc --version); the oldest that is promised is $oldest" >&2
fi

# No dependency, of whatever feature or platform, may ask for a later Rust than the packages promise. Those of other platforms may
# have to be fetched first.
"${CARGO:-cargo}" metadata --format-version 1 --locked | python3 -c '
import json, sys
number = lambda version: tuple(int(part) for part in (version + ".0.0").split(".")[:3])
oldest = sys.argv[1]
for package in json.load(sys.stdin)["packages"]:
    asked = package["rust_version"]
    if package["source"] and asked and number(asked) > number(oldest):
        sys.exit("error: {name} {version} asks for Rust {rust_version}, and Cargo.toml promises ".format(**package) + oldest +
                 ": take an older version of it, or raise rust-version")
' "$oldest"

rm -rf target/package "$work/new"
"${CARGO:-cargo}" package --workspace --exclude gpt2-python --exclude models-on-candle-fused --no-verify --allow-dirty --offline --quiet --target-dir target
mkdir -p "$work/new" "$work/packages"
for package in target/package/*.crate; do
    tar -xzmf "$package" -C "$work/new" # -m: cargo goes by the times of files
done
for folder in "$work"/new/*; do
    for file in README.md LICENSE-MIT LICENSE-APACHE; do
        [ -s "$folder/$file" ] ||
            { echo "error: the package $(basename "$folder") has no $file; put one beside its Cargo.toml, the licenses as links" >&2; exit 1; }
    done
done
cp -r scripts/outside "$work/new/outside"

# An unchanged package keeps its files, so that cargo need not compile it again.
for folder in "$work"/packages/*; do
    [ -d "$work/new/$(basename "$folder")" ] || rm -rf "$folder"
done
for folder in "$work"/new/*; do
    old=$work/packages/$(basename "$folder")
    if ! diff -rq -x .cargo_vcs_info.json "$folder" "$old" >/dev/null 2>&1; then
        rm -rf "$old"
        mv "$folder" "$old"
    fi
done
rm -rf "$work/new"

{
    printf '[workspace]\nresolver = "3"\nmembers = ["*"]\n\n[profile.dev]\ndebug = false\nincremental = false\n\n'
    # The same release profile, so that what the gate has checked of other crates need not be checked again.
    sed -n '/^\[profile.release/,$p' "$root/Cargo.toml"
    printf '\n[patch.crates-io]\n'
    for folder in "$work"/packages/{candle,gpt2}-*; do
        name=$(basename "$folder")
        printf '%s = { path = "%s" }\n' "${name%-*}" "$name"
    done
} >"$work/manifest"
cmp -s "$work/manifest" "$work/packages/Cargo.toml" || cp "$work/manifest" "$work/packages/Cargo.toml"
cp Cargo.lock "$work/packages/Cargo.lock"

cd "$work/packages"
if [ "${1:-}" = types ]; then
    exec $cargo check --release --offline --quiet --workspace --target-dir "$root/target"
fi
# Build everything at once, with a library user's features: `x86-v4` is off.
$cargo build --offline --quiet --workspace --no-default-features --features gpt2-cli/hub --target-dir "$root/$work/target"
"$root/$work/target/debug/outside"
# What `cargo install gpt2-cli` installs.
"$root/$work/target/debug/gpt2" --quiet attention "O Romeo" >/dev/null
