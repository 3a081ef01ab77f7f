#!/usr/bin/env bash
# Builds the Python package and tests it: its types (mypy and pyright, strict), and with pytest every function against the command,
# TransformerLens' and transformers' numbers in tests/data, and misuse. Afterwards PYTHONPATH=target/python-package has the package.
#
#   python3 -m pip install --target target/pytest -r scripts/requirements-python.txt
#   scripts/python.sh [PYTEST ARGUMENT...]      PYTHON may name another python
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in
    -h | --help) sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0"; exit ;;
esac
cargo=${CARGO:-cargo} python=${PYTHON:-python3}
tools=$PWD/target/pytest package=$PWD/target/python-package
if [ ! -d "$tools/pytest" ]; then
    echo "error: no pytest; run: python3 -m pip install --target target/pytest -r scripts/requirements-python.txt" >&2
    exit 3
fi

# With the command, whose features are those of the tests: by itself, the package would have Candle compiled a second time.
"$cargo" build --release -p gpt2-cli -p gpt2-python
rm -rf "$package"
mkdir -p "$package"
cp -r crates/python/python/gpt2_candle "$package"
case $(uname) in
    Darwin) library=libgpt2_candle_native.dylib ;;
    *) library=libgpt2_candle_native.so ;;
esac
cp "target/release/$library" "$package/gpt2_candle/_native.abi3.so"

export PYTHONPATH=$package:$tools PYTHONDONTWRITEBYTECODE=1
(cd crates/python && "$python" -m mypy --cache-dir ../../target/mypy && "$python" -m pyright --pythonpath "$(command -v "$python")")
"$python" -m pytest -q -p no:cacheprovider tests/python "$@"
