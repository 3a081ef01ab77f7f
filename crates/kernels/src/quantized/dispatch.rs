//! Which instruction set multiplies codes.

use super::vectors::{Portable, Vectors, Work};
#[cfg(target_arch = "x86_64")]
use super::x86;
use crate::isa::Isa;

/// Runs `work` on the instruction set, or in plain Rust where there is no code for it here.
pub(super) fn dispatch<W: Work>(isa: Isa, work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the features were looked for.
    unsafe {
        match isa {
            #[cfg(feature = "x86-v4")]
            Isa::Avx512 | Isa::Amx if isa.arch().is_some() && is_x86_feature_detected!("avx512vnni") => {
                return x86::Avx512Vnni::call(work);
            }
            Isa::AvxVnni if isa.arch().is_some() => return x86::AvxVnni::call(work),
            Isa::Avx2 | Isa::Avx512 | Isa::Amx if Isa::Avx2.arch().is_some() => return x86::Avx2::call(work),
            _ => {}
        }
    }
    let _ = isa;
    // SAFETY: every processor has this.
    unsafe { Portable::call(work) }
}
