//! Code for products of codes, compiled once for each instruction set.

use super::vectors::{Portable, Vectors};
#[cfg(target_arch = "x86_64")]
use super::x86;
use crate::isa::Isa;

/// Code that is compiled for each instruction set.
pub(super) trait Work {
    type Output;

    /// # Safety
    /// The processor has the instruction set.
    unsafe fn run<V: Vectors>(self) -> Self::Output;
}

/// Runs `work` on the instruction set, or in plain Rust where there is no code for it here.
pub(super) fn dispatch<W: Work>(isa: Isa, work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the features were looked for.
    unsafe {
        match isa {
            #[cfg(feature = "x86-v4")]
            Isa::Avx512 | Isa::Amx if isa.arch().is_some() && is_x86_feature_detected!("avx512vnni") => {
                return avx512_vnni(work);
            }
            Isa::AvxVnni if isa.arch().is_some() => return avx_vnni(work),
            Isa::Avx2 | Isa::Avx512 | Isa::Amx if Isa::Avx2.arch().is_some() => return avx2(work),
            _ => {}
        }
    }
    let _ = isa;
    // SAFETY: every processor has this.
    unsafe { work.run::<Portable>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
fn avx2<W: Work>(work: W) -> W::Output {
    // SAFETY: this function's features are the set's.
    unsafe { work.run::<x86::Avx2>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avxvnni,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
fn avx_vnni<W: Work>(work: W) -> W::Output {
    // SAFETY: as above.
    unsafe { work.run::<x86::AvxVnni>() }
}

#[cfg(all(target_arch = "x86_64", feature = "x86-v4"))]
#[target_feature(
    enable = "avx512vnni,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt"
)]
fn avx512_vnni<W: Work>(work: W) -> W::Output {
    // SAFETY: as above.
    unsafe { work.run::<x86::Avx512Vnni>() }
}
