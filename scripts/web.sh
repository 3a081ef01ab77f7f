#!/usr/bin/env bash
# Builds the module that runs the model in a page, and the script that loads it: target/web/page, for gpt2 live. It needs the
# target wasm32-unknown-unknown and wasm-bindgen's command, in the version of Cargo.lock.
#
#   scripts/web.sh
#   cargo run --release -- live --module target/web/page --open
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

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
ls -l target/web/page
