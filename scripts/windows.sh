#!/usr/bin/env bash
# Builds the command for Windows with GCC's cross compiler, and runs in Wine the tests of files and of the loader, and those of the
# command that concern files, streams and help. With `all`, all of the command's. The build takes four minutes once, the tests
# two; all of them, seven. With `types`, it runs nothing and checks the types alone, in a minute and a half.
#
#   apt-get install wine64 gcc-mingw-w64-x86-64
#   scripts/windows.sh [types|all]
set -euo pipefail
cd "$(dirname "$0")/.."
only=(files:: hub::cached hub::repositories stdin_stdout:: help:: texts::)
case ${1:-} in
    '' | types) ;;
    all) only=() ;;
    -h | --help) sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0"; exit ;;
    *) echo "error: $1: expected types, all, or nothing" >&2; exit 2 ;;
esac
wine() { [ "${1:-}" = types ] || command -v /usr/lib/wine/wine64 || command -v wine64; }
{ command -v x86_64-w64-mingw32-gcc && wine "$@"; } >/dev/null ||
    { echo "error: no GCC for Windows, or no Wine; run: apt-get install wine64 gcc-mingw-w64-x86-64" >&2; exit 3; }
cargo=${CARGO:-cargo}
target=x86_64-pc-windows-gnu
build=(--release --target $target --target-dir target/windows -p gpt2-files -p gpt2-loader -p gpt2-cli)

[ -d "$(rustc --print target-libdir --target $target)" ] || rustup target add $target
[ "${1:-}" != types ] || exec "$cargo" check "${build[@]}" --tests
list=$(mktemp)
trap 'rm -f "$list"' EXIT
export CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER=$PWD/scripts/wine.sh
export CARGO_PROFILE_RELEASE_OPT_LEVEL=1 # compiles sooner
"$cargo" test "${build[@]}" --test files --test loader -- --quiet
# A filter that names no test would pass.
"$cargo" test "${build[@]}" --test cli -- --list >"$list"
for filter in "${only[@]}"; do
    grep -q "$filter" "$list" || { echo "error: no test of the command is named $filter" >&2; exit 1; }
done
"$cargo" test "${build[@]}" --test cli -- --quiet "${only[@]}"
