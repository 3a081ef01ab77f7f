#!/usr/bin/env bash
# Builds the module that runs the model in a page, and the script that loads it. Without a folder, it renews those of
# crates/page-module, which every build of the command has inside: commit them. It needs the target wasm32-unknown-unknown and
# wasm-bindgen's command, in the version of Cargo.lock, and installs both.
#
#   scripts/web.sh [FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
to=${1:-crates/page-module/module}

[ -d "$(rustc --print target-libdir --target wasm32-unknown-unknown)" ] || rustup target add wasm32-unknown-unknown
version=$(grep -A1 '^name = "wasm-bindgen"$' Cargo.lock | sed -n 's/^version = "\(.*\)"$/\1/p')
bindgen=target/web/tools/bin/wasm-bindgen
if [ "$("$bindgen" --version 2>/dev/null)" != "wasm-bindgen $version" ]; then
    # Unoptimized, it is built in a third of the time.
    "$cargo" install --debug --root target/web/tools --target-dir target/web/tools/build \
        wasm-bindgen-cli --version "$version"
fi
# Visitors of a page need not know where it was built.
flags=$(printf '%s\037' -Ctarget-feature=+simd128 "--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo" "--remap-path-prefix=$PWD=gpt2")
CARGO_ENCODED_RUSTFLAGS=${flags%?} "$cargo" rustc --profile web -p gpt2-web --lib --crate-type cdylib \
    --target wasm32-unknown-unknown --target-dir target/web
"$bindgen" --target no-modules --no-typescript --remove-name-section --remove-producers-section --out-dir target/web/page \
    target/web/wasm32-unknown-unknown/web/gpt2_web.wasm
mkdir -p "$to"
cp target/web/page/gpt2_web.js "$to/gpt2_web.js"
python3 -c 'import sys, zlib; sys.stdout.buffer.write(zlib.compress(sys.stdin.buffer.read(), 9))' \
    <target/web/page/gpt2_web_bg.wasm >"$to/gpt2_web.wasm.zlib"
ls -l target/web/page/gpt2_web_bg.wasm "$to"
