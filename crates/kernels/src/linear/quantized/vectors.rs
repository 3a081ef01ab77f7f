//! The instruction sets that multiply codes, each in a file of its own.

#[cfg(target_arch = "aarch64")]
use super::neon;
use super::portable::{Portable, VectorCode, Vectors};
#[cfg(target_arch = "wasm32")]
use super::wasm;
#[cfg(target_arch = "x86_64")]
use super::x86;
use crate::cpu::isa::{ByteProducts, Isa};

/// Runs `work` on the instruction set, or in plain Rust where there is no code for it here.
pub(super) fn dispatch<W: VectorCode>(isa: Isa, work: W) -> W::Output {
    // SAFETY: `Isa` has looked for the features.
    unsafe {
        match isa.byte_products() {
            ByteProducts::Portable => Portable::call(work),
            #[cfg(target_arch = "x86_64")]
            ByteProducts::Avx2 => x86::Avx2::call(work),
            #[cfg(target_arch = "x86_64")]
            ByteProducts::AvxVnni => x86::AvxVnni::call(work),
            #[cfg(all(target_arch = "x86_64", feature = "x86-v4"))]
            ByteProducts::Avx512Vnni => x86::Avx512Vnni::call(work),
            #[cfg(target_arch = "aarch64")]
            ByteProducts::Neon => neon::Neon::call(work),
            #[cfg(target_arch = "aarch64")]
            ByteProducts::NeonDot => neon::NeonDot::call(work),
            #[cfg(target_arch = "aarch64")]
            ByteProducts::NeonI8mm => neon::NeonI8mm::call(work),
            #[cfg(target_arch = "wasm32")]
            ByteProducts::Simd128 => wasm::Simd128::call(work),
        }
    }
}
