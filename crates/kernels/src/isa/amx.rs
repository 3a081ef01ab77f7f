//! Whether a program may use Intel's tile registers, which Linux grants on request.

#![allow(unsafe_code)]

use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::LazyLock;

/// Whether the processor has AMX for bf16, and the system lets this process use it.
pub(super) fn available() -> bool {
    const BF16_AND_TILE: u32 = 1 << 22 | 1 << 24;
    // arch_prctl's request for the use of an extended state, and the number of the tiles' state.
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XTILEDATA: libc::c_long = 18;
    static AVAILABLE: LazyLock<bool> = LazyLock::new(|| {
        __cpuid(0).eax >= 7
            && __cpuid_count(7, 0).edx & BF16_AND_TILE == BF16_AND_TILE
            // SAFETY: the call reads no memory. A system that does not know it returns an error.
            && unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) } == 0
    });
    *AVAILABLE
}
