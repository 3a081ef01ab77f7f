#!/usr/bin/env bash
# Runs a Windows program of x86-64 in Wine, with a Windows of its own in target/wine.
#
#   apt-get install wine64 gcc-mingw-w64-x86-64
#   scripts/wine.sh PROGRAM [ARGUMENT...]
set -euo pipefail
case ${1:-} in
    '' | -h | --help) sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0"; exit ;;
esac
root=$(cd "$(dirname "$0")/.." && pwd)
wine=$(command -v /usr/lib/wine/wine64 || command -v wine64 || true)
[ -n "$wine" ] || { echo "error: no wine64; run: apt-get install wine64 gcc-mingw-w64-x86-64" >&2; exit 3; }
export WINEPREFIX=$root/target/wine WINEDEBUG=${WINEDEBUG:--all}
# Debian's package of that name alone does not put it on the path.
[ ! -x /usr/lib/wine/wineserver64 ] || export WINESERVER=/usr/lib/wine/wineserver64

prng=$WINEPREFIX/drive_c/windows/system32/bcryptprimitives.dll
if [ ! -e "$prng" ]; then
    mkdir -p "$root/target"
    "$wine" wineboot --init >&2
    # Rust's programs take random numbers from a library that Wine has since version 8.13; Debian 12 has 8.0.
    if [ ! -e "$prng" ]; then
        x86_64-w64-mingw32-gcc -shared -x c - -o "$prng" -ladvapi32 <<'C'
#include <windows.h>
BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T len) { return SystemFunction036(data, (ULONG)len); }
C
    fi
fi
exec "$wine" "$@"
