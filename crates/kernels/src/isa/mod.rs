//! The instruction sets that the CPU kernels are compiled for, and the one that runs.

#[cfg(amx)]
mod amx;

use pulp::Arch;
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// The environment variable that holds the kernels to an instruction set: the name of an [`Isa`].
pub const ENVIRONMENT_VARIABLE: &str = "GPT2_ISA";

/// An instruction set, slowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Isa {
    /// What every processor of the target has.
    Portable,
    /// 128-bit vectors of Arm processors.
    Neon,
    /// 256-bit vectors with FMA and F16C.
    Avx2,
    /// The same with AVX-VNNI, whose products of bytes quantized layers use; everything else runs as on AVX2.
    AvxVnni,
    /// 512-bit vectors; compiled only with the feature `x86-v4`.
    Avx512,
    /// Intel's tile registers for products of bf16 matrices, where subnormal numbers count as 0, and AVX-512 for everything
    /// else; Linux only, with the feature `x86-v4`. The first question for the instruction set asks Linux to let this process
    /// use the tiles, which needs signal stacks of about 11 KB; a lower set in `GPT2_ISA` does not ask.
    Amx,
}

/// Slowest first, as in [`Isa`].
const ALL: [Isa; 6] = [Isa::Portable, Isa::Neon, Isa::Avx2, Isa::AvxVnni, Isa::Avx512, Isa::Amx];

/// The choice of [`Isa::hold`], plus one; 0 before there is one.
static HELD: AtomicU8 = AtomicU8::new(0);

impl Isa {
    /// The name in lower case.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Neon => "neon",
            Self::Avx2 => "avx2",
            Self::AvxVnni => "avx-vnni",
            Self::Avx512 => "avx512",
            Self::Amx => "amx",
        }
    }

    /// The instruction sets that this processor has and this build has code for, slowest first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        ALL.into_iter().filter(|isa| isa.arch().is_some()).collect()
    }

    /// The instruction set that the kernels use: the one given to [`hold`](Self::hold), else the one that the
    /// environment variable `GPT2_ISA` names, else the fastest.
    ///
    /// Products of two factors that both change use the crate `gemm` on AVX-512, AMX and NEON only. Candle's own products are
    /// `gemm`'s, which always takes the fastest.
    #[must_use]
    pub fn current() -> Self {
        let held = HELD.load(Ordering::Relaxed);
        let from_environment = || named().as_ref().ok().copied().flatten();
        ALL.get(usize::from(held).wrapping_sub(1))
            .copied()
            .or_else(from_environment)
            .unwrap_or_else(Self::best)
    }

    /// The fastest of [`available`](Self::available).
    #[must_use]
    pub fn best() -> Self {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| Self::available().pop().unwrap_or(Self::Portable))
    }

    /// Holds the whole process to this instruction set from now on, to test or time it.
    ///
    /// # Errors
    /// When the processor lacks it, or this build has no code for it.
    pub fn hold(self) -> Result<(), IsaError> {
        self.check()?;
        HELD.store(self as u8 + 1, Ordering::Relaxed);
        Ok(())
    }

    /// Refuses an instruction set that cannot run here.
    fn check(self) -> Result<Self, IsaError> {
        if self.arch().is_some() {
            return Ok(self);
        }
        let names: Vec<&str> = Self::available().into_iter().map(Self::as_str).collect();
        Err(IsaError(format!(
            "instruction set {}: this processor or this build does not have it; choose one of {}",
            self.as_str(),
            names.join(", ")
        )))
    }

    /// `pulp`'s token for it, if it can run here.
    pub(crate) fn arch(self) -> Option<Arch> {
        match self {
            Self::Portable => Some(Arch::Scalar),
            #[cfg(target_arch = "x86_64")]
            // Every processor with AVX2 has F16C, but a virtual machine can hide it.
            Self::Avx2 => pulp::x86::V3::try_new().filter(|_| is_x86_feature_detected!("f16c")).map(Arch::V3),
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => Self::Avx2.arch().filter(|_| is_x86_feature_detected!("avxvnni")),
            #[cfg(all(target_arch = "x86_64", feature = "x86-v4"))]
            Self::Avx512 => {
                pulp::x86::V4::try_new().filter(|_| is_x86_feature_detected!("f16c")).map(Arch::V4)
            }
            #[cfg(amx)]
            Self::Amx => Self::Avx512.arch().filter(|_| amx::available()),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => pulp::aarch64::Neon::try_new().map(Arch::Neon),
            #[allow(unreachable_patterns)] // which are left depends on the target
            _ => None,
        }
    }
}

impl FromStr for Isa {
    type Err = IsaError;

    fn from_str(name: &str) -> Result<Self, IsaError> {
        let found = ALL.into_iter().find(|isa| isa.as_str() == name);
        let names = || ALL.map(Self::as_str).join(", ");
        found.ok_or_else(|| IsaError(format!("instruction set {name:?}: expected one of {}", names())))
    }
}

/// An instruction set that does not exist, or not here.
#[derive(Debug, Clone)]
pub struct IsaError(String);

impl fmt::Display for IsaError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for IsaError {}

/// Refuses a value of the environment variable `GPT2_ISA` that names no instruction set of this machine.
///
/// # Errors
/// Says what the variable holds, and which names fit.
pub fn check_environment() -> Result<(), IsaError> {
    match named() {
        Ok(_) => Ok(()),
        Err(error) => Err(IsaError(format!("{ENVIRONMENT_VARIABLE}: {error}"))),
    }
}

/// What the environment names.
fn named() -> &'static Result<Option<Isa>, IsaError> {
    static NAMED: OnceLock<Result<Option<Isa>, IsaError>> = OnceLock::new();
    NAMED.get_or_init(|| match std::env::var(ENVIRONMENT_VARIABLE) {
        Ok(name) if !name.is_empty() => name.parse::<Isa>().and_then(Isa::check).map(Some),
        Err(std::env::VarError::NotUnicode(_)) => Err(IsaError("not Unicode".into())),
        _ => Ok(None),
    })
}

/// The code that runs a kernel on the instruction set of [`Isa::current`].
pub(crate) fn arch() -> Arch {
    Isa::current().arch().unwrap_or(Arch::Scalar)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_back_and_others_are_refused_with_the_list() {
        for isa in ALL {
            assert_eq!(isa.as_str().parse::<Isa>().expect("a name"), isa);
        }
        let message = "sse9".parse::<Isa>().expect_err("no such set").to_string();
        assert!(message.contains("\"sse9\"") && message.contains("avx2"), "{message}");
    }

    #[test]
    fn the_best_is_the_last_of_those_that_there_are_and_what_is_missing_is_refused() {
        let available = Isa::available();
        assert!(available.is_sorted() && available.first() == Some(&Isa::Portable));
        assert_eq!(available.last(), Some(&Isa::best()));
        for missing in ALL.into_iter().filter(|isa| !available.contains(isa)) {
            let message = missing.hold().expect_err("it is not there").to_string();
            assert!(message.contains(missing.as_str()) && message.contains("portable"), "{message}");
        }
    }
}
