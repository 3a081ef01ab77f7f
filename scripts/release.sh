#!/usr/bin/env bash
# Builds for other machines: for each target a wheel, with the Python package and the command, and an archive with the command, both
# able to write the live page; starts what it built, in an emulator where it has to; and writes SHA256SUMS. All go to target/dist/out. Five
# minutes a target, and half an hour for `verify` in QEMU.
#
#   apt-get install qemu-user-static gcc-aarch64-linux-gnu libc6-dev-arm64-cross gcc-mingw-w64-x86-64 wine64
#   scripts/release.sh [TARGET...]
#
# Without targets: Linux on x86-64 and on Arm, for glibc since 2.17, and Windows; on macOS, macOS.
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in
    -h | --help) sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0"; exit ;;
esac
case $(uname) in
    Darwin) default=(aarch64-apple-darwin) ;;
    *) default=(x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu x86_64-pc-windows-gnu) ;;
esac
[ $# -gt 0 ] || set -- "${default[@]}"
host=$(rustc -vV | sed -n 's/^host: //p')
for target; do
    case $target in
        "$host") needs='' ;;
        aarch64-unknown-linux-gnu) needs='qemu-aarch64-static aarch64-linux-gnu-gcc' ;;
        x86_64-pc-windows-gnu) needs='x86_64-w64-mingw32-gcc scripts/wine.sh' ;;
        *) echo "error: $target: nothing here runs it; expected $host, or one of ${default[*]}" >&2; exit 2 ;;
    esac
    for tool in $needs; do
        command -v "$tool" >/dev/null || { echo "error: no $tool; scripts/release.sh -h says what to install" >&2; exit 3; }
    done
done
out=$PWD/target/dist/out
unset RUST_BACKTRACE # with it, the command starts itself again, which takes more than an emulator
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -1)
case ${GITHUB_REF:-} in
    "refs/tags/v$version") ;;
    refs/tags/*) echo "error: $GITHUB_REF: Cargo.toml has version $version; tag v$version, or change it" >&2; exit 2 ;;
esac
[ -z "$(git status --porcelain)" ] || echo "note: there are changes that no commit has" >&2

# The same bytes for the same commit in the same folder, and no date.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH TZ=UTC
registry=${CARGO_HOME:-$HOME/.cargo}
export RUSTFLAGS="--remap-path-prefix=$registry=cargo --remap-path-prefix=$PWD=gpt2"
export CFLAGS="-ffile-prefix-map=$registry=cargo -ffile-prefix-map=$PWD=gpt2"

tools=$PWD/target/dist/tools
[ -x "$tools/bin/pip" ] || python3 -m venv "$tools"
"$tools/bin/pip" install --quiet --require-hashes --no-deps -r scripts/requirements-release.txt
export PATH=$tools/bin:$PATH
rm -rf "$out"
mkdir -p "$out"

# Runs the command that was built for a target.
on() {
    local target=$1 binary=$2
    shift 2
    case $target in
        "$host") "$binary" "$@" ;;
        *-linux-*) QEMU_LD_PREFIX=/usr/aarch64-linux-gnu qemu-aarch64-static "$binary" "$@" ;;
        *-windows-*) scripts/wine.sh "$binary" "$@" ;;
    esac
}

for target; do
    printf '\n== %s\n' "$target"
    [ -d "$(rustc --print target-libdir --target "$target")" ] || rustup target add "$target"
    options=() started=$(mktemp)
    case $target in
        *-linux-gnu) options=(--zig --compatibility manylinux2014) ;;
        *-darwin) options=(--features metal,accelerate) ;;
    esac
    # First the command, in a wheel of its own that nobody gets, then the package with the command inside.
    maturin build --manifest-path crates/cli/Cargo.toml --target "$target" --target-dir target/dist/build "${options[@]}" --out target/dist/command
    case $target in *-windows-*) exe=.exe ;; *) exe= ;; esac
    binary=$PWD/target/dist/build/$target/dist/gpt2$exe

    name=gpt2-$version-$target
    folder=target/dist/$name
    rm -rf "$folder"
    mkdir -p "$folder/completions" "$folder/man"
    cp "$binary" README.md LICENSE-* CHANGELOG.md "$folder"
    wheel=$(find target/dist/command -name '*.whl' -newer "$started")
    # maturin lists in it what the binary was built from.
    python3 -c 'import sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
[name] = [name for name in wheel.namelist() if "/sboms/" in name and "gpt2" in name]
sys.stdout.buffer.write(wheel.read(name))' "$wheel" >"$folder/sbom.cyclonedx.json"
    for file in bash:gpt2.bash zsh:_gpt2 fish:gpt2.fish powershell:_gpt2.ps1; do
        on "$target" "$binary" completions "${file%:*}" >"$folder/completions/${file#*:}"
    done
    on "$target" "$binary" man >"$folder/man/gpt2.1"
    commands=$(on "$target" "$binary" help | sed -n '/^Commands:/,/^$/s/^  \([a-z-]*\) .*/\1/p')
    [ -n "$commands" ] || { echo "error: help lists no commands" >&2; exit 1; }
    for command in $commands; do
        [ "$command" = help ] || on "$target" "$binary" man "$command" >"$folder/man/gpt2-$command.1"
    done
    echo "starts:"
    on "$target" "$binary" --quiet attention "O Romeo" | grep 'fused attention'
    on "$target" "$binary" --quiet verify | grep 'paths within'
    on "$target" "$binary" --quiet live --overwrite --out target/dist/live.html
    case $target in *-linux-gnu) echo "needs $(LC_ALL=C readelf -V "$binary" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1)" ;; esac
    case $target in *-windows-*) suffix=zip ;; *) suffix=tar.gz ;; esac
    scripts/archive.py "$folder" "$out/$name.$suffix"

    # The package, and the command in its wheel.
    touch "$started"
    maturin build --manifest-path crates/python/Cargo.toml --target "$target" --target-dir target/dist/build "${options[@]}" --out target/dist/package
    wheel=$(find target/dist/package -name '*.whl' -newer "$started")
    rm -rf target/dist/wheel
    wheel unpack --dest target/dist/wheel "$wheel"
    unpacked=$(echo target/dist/wheel/*)
    mkdir -p "$unpacked/gpt2_candle-$version.data/scripts"
    cp "$binary" "$unpacked/gpt2_candle-$version.data/scripts"
    wheel pack --dest-dir "$out" "$unpacked"
    if [ "$target" = "$host" ]; then # elsewhere there is no Python to start it with
        rm -rf target/dist/fresh
        python3 -m venv target/dist/fresh
        target/dist/fresh/bin/pip install --quiet "$(find "$out" -name '*.whl' -newer "$wheel")"
        target/dist/fresh/bin/gpt2 --quiet attention "O Romeo" | grep 'fused attention'
        target/dist/fresh/bin/python -c 'from gpt2_candle import Model; print(Model.load().attention("O Romeo"))'
    fi
    rm "$started"
done
sum=(sha256sum)
command -v sha256sum >/dev/null || sum=(shasum -a 256)
(cd "$out" && rm -f SHA256SUMS && "${sum[@]}" -- * >SHA256SUMS && ls -l)
