#!/usr/bin/env bash
# Builds the module that runs the model in a page, and the script that loads it. Without a folder, it renews those of
# crates/page-module, which every build of the command has inside: commit them. It installs what it needs and does not find: the
# target wasm32-unknown-unknown by rustup, and wasm-bindgen's command, in the version of Cargo.lock, in target/web/tools. A module
# with the same content keeps its file, since other versions of zlib pack it into other bytes.
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
python3 - target/web/page/gpt2_web_bg.wasm "$to/gpt2_web.wasm.js" <<'END'
import base64, pathlib, sys, zlib
module, script = map(pathlib.Path, sys.argv[1:])
try:
    is_same = zlib.decompress(base64.b64decode(script.read_text().split('"')[3])) == module.read_bytes()
except (OSError, IndexError, ValueError, zlib.error):
    is_same = False
if not is_same:
    packed = base64.b64encode(zlib.compress(module.read_bytes(), 9)).decode()
    script.write_text(f'(globalThis.gpt2Live ??= {{}})["module"] = "{packed}";\n')
END
ls -l target/web/page/gpt2_web_bg.wasm "$to"
