#!/usr/bin/env bash
# Runs the tests of the libraries on Arm, in QEMU: NEON without and with `dotprod`. It needs Debian's packages qemu-user-static,
# gcc-aarch64-linux-gnu and libc6-dev-arm64-cross. QEMU says nothing about speed.
#
#   scripts/arm.sh            the kernels, on two processors, and the model and the loader: eight minutes once
#   scripts/arm.sh kernels    the kernels alone
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
target=aarch64-unknown-linux-gnu

[ -d "$(rustc --print target-libdir --target $target)" ] || rustup target add $target
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=qemu-aarch64-static
export QEMU_LD_PREFIX=/usr/aarch64-linux-gnu
