//! The instruction sets that the CPU kernels are compiled for, and the one that runs: what the processor has is asked here
//! alone.
//!
//! A new instruction set is a variant of [`Isa`] with its answers in this file, its vectors in `linear/product/lanes.rs` if `pulp`
//! has a token for them, and its products of bytes in a file of `linear/quantized/`.

use candle_core::{Error, Result};
use pulp::Arch;
use std::str::FromStr;
use std::sync::OnceLock;

/// The environment variables that name the instruction set of a process, first the one that wins; the other is the name that the
/// command `gpt2` prints. The crate's only other one is `CANDLE_FUSED_CUDA_PRODUCTS`.
const ENVIRONMENT_VARIABLES: [&str; 2] = ["CANDLE_FUSED_ISA", "GPT2_ISA"];

/// An instruction set, slowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Isa {
    /// The baseline of the target, which every processor has.
    Portable,
    /// 128-bit vectors of WebAssembly. They multiply and add in two steps, each of which rounds, so that exact GELU loses digits
    /// far below 0.
    Simd128,
    /// 128-bit vectors of Arm processors. Quantized layers use `dotprod` and `i8mm` where the processor has them, products of
    /// bf16 matrices `bf16`; subnormal numbers then count as 0.
    Neon,
    /// 256-bit vectors with FMA and F16C.
    Avx2,
    /// AVX2 with AVX-VNNI, whose products of bytes quantized layers use; everything else runs as on AVX2.
    AvxVnni,
    /// 512-bit vectors; compiled only with the feature `x86-v4`. Quantized layers use AVX512-VNNI where the processor has it.
    /// Products of bf16 matrices use AVX512-BF16 on AMD's processors that have it; subnormal numbers then count as 0.
    Avx512,
    /// Intel's tile registers for products of bf16 matrices, where subnormal numbers count as 0, and AVX-512 for everything
    /// else; Linux only, with the feature `x86-v4`. The first question for the instruction set asks Linux to let this process
    /// use the tiles, which needs signal stacks of about 11 KB; a lower set in `CANDLE_FUSED_ISA` does not ask.
    Amx,
}

/// Slowest first, as in [`Isa`].
const ALL: [Isa; 7] =
    [Isa::Portable, Isa::Simd128, Isa::Neon, Isa::Avx2, Isa::AvxVnni, Isa::Avx512, Isa::Amx];

/// The choice for the whole process.
static CHOSEN: OnceLock<Isa> = OnceLock::new();

/// The code that multiplies bytes, for quantized weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ByteProducts {
    /// Plain Rust.
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    #[cfg(all(target_arch = "x86_64", feature = "x86-v4"))]
    Avx512Vnni,
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// With the processor's `dotprod`.
    #[cfg(target_arch = "aarch64")]
    NeonDot,
    /// With `i8mm`, too.
    #[cfg(target_arch = "aarch64")]
    NeonI8mm,
    #[cfg(target_arch = "wasm32")]
    Simd128,
}

/// The environment variable that names an instruction set, and the name.
fn named() -> Option<(&'static str, String)> {
    let value = |variable| Some((variable, std::env::var(variable).ok().filter(|name| !name.is_empty())?));
    ENVIRONMENT_VARIABLES.into_iter().find_map(value)
}

impl Isa {
    /// The name in lower case.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Simd128 => "simd128",
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

    /// The instruction set that the kernels use, chosen once for the process: the one given to [`hold`](Self::hold), else the
    /// one [`from_environment`](Self::from_environment), read at the first operation, else the [`best`](Self::best).
    ///
    /// Products of two factors that both change use the crate `gemm` on AVX-512, AMX and NEON only. Candle's own products are
    /// `gemm`'s, which always takes the fastest.
    #[must_use]
    pub fn current() -> Self {
        *CHOSEN.get_or_init(|| Self::from_environment().ok().flatten().unwrap_or_else(Self::best))
    }

    /// The fastest of [`available`](Self::available).
    #[must_use]
    pub fn best() -> Self {
        Self::available().pop().unwrap_or(Self::Portable)
    }

    /// Holds the whole process to this instruction set, to test or time it. Call it before the first operation.
    ///
    /// # Errors
    /// When the processor lacks it, this build has no code for it, or the process already uses another.
    pub fn hold(self) -> Result<()> {
        self.check()?;
        match *CHOSEN.get_or_init(|| self) {
            chosen if chosen == self => Ok(()),
            chosen => Err(Error::msg(format!(
                "instruction set {}: this process already runs on {}; choose one before the first operation",
                self.as_str(),
                chosen.as_str()
            ))),
        }
    }

    /// The instruction set that the environment variable `CANDLE_FUSED_ISA` names, if it is set; without it, `GPT2_ISA`. A program
    /// calls this once, where it starts, to refuse a wrong name; the kernels ignore it.
    ///
    /// # Errors
    /// When a variable names no instruction set, or one that cannot run here.
    pub fn from_environment() -> Result<Option<Self>> {
        let Some((variable, name)) = named() else { return Ok(None) };
        let isa = name.parse::<Self>().and_then(Self::check);
        isa.map(Some).map_err(|error| Error::msg(format!("{variable}: {error}")))
    }

    /// Refuses an instruction set that cannot run here.
    fn check(self) -> Result<Self> {
        if self.arch().is_some() {
            return Ok(self);
        }
        let names: Vec<&str> = Self::available().into_iter().map(Self::as_str).collect();
        Err(Error::msg(format!(
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
            Self::Amx => Self::Avx512.arch().filter(|_| tiles_are_available()),
            #[cfg(target_arch = "wasm32")]
            Self::Simd128 => pulp::wasm::Simd128::try_new().map(Arch::Simd128),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => pulp::aarch64::Neon::try_new().map(Arch::Neon),
            #[allow(unreachable_patterns)] // which are left depends on the target
            _ => None,
        }
    }

    /// The code for products of bytes.
    pub(crate) fn byte_products(self) -> ByteProducts {
        match self {
            #[cfg(all(target_arch = "x86_64", feature = "x86-v4"))]
            Self::Avx512 | Self::Amx if self.arch().is_some() && is_x86_feature_detected!("avx512vnni") => {
                ByteProducts::Avx512Vnni
            }
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni if self.arch().is_some() => ByteProducts::AvxVnni,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 | Self::Avx512 | Self::Amx if Self::Avx2.arch().is_some() => ByteProducts::Avx2,
            #[cfg(target_arch = "aarch64")]
            Self::Neon if self.arch().is_some() => {
                use std::arch::is_aarch64_feature_detected as has;
                match (has!("dotprod"), has!("i8mm")) {
                    (true, true) => ByteProducts::NeonI8mm,
                    (true, false) => ByteProducts::NeonDot,
                    (false, _) => ByteProducts::Neon,
                }
            }
            #[cfg(target_arch = "wasm32")]
            Self::Simd128 if self.arch().is_some() => ByteProducts::Simd128,
            _ => ByteProducts::Portable,
        }
    }

    /// Whether products of bf16 matrices multiply pairs of numbers: with AVX512-BF16 where that is fast, and with Arm's `bf16`.
    /// Intel's `vdpbf16ps` does half as many operations a second as multiply-adds in f32, AMD's twice as many; Arm's `bfdot` has
    /// not been measured.
    pub(crate) fn has_pairs(self) -> bool {
        match self {
            #[cfg(all(target_arch = "x86_64", feature = "x86-v4"))]
            Self::Avx512 => self.arch().is_some() && is_x86_feature_detected!("avx512bf16") && made_by_amd(),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => self.arch().is_some() && std::arch::is_aarch64_feature_detected!("bf16"),
            _ => false,
        }
    }

    /// Whether products of bf16 matrices have instructions of their own here: AMX's tiles, or pairs where those are fast.
    #[must_use]
    pub fn has_bf16_products(self) -> bool {
        #[cfg(amx)]
        if self.has_tiles() {
            return true;
        }
        self.has_pairs()
    }

    /// Whether products of bf16 matrices run in tile registers.
    #[cfg(amx)]
    pub(crate) fn has_tiles(self) -> bool {
        self == Self::Amx && self.arch().is_some()
    }

    /// Whether the crate `gemm`, which packs both factors, takes no longer than our tiles. On AVX2 it takes longer: it reaches
    /// half of what the processor can do, see docs/benchmarks.md. NEON has not been measured. `gemm` always uses the fastest
    /// instruction set.
    pub(crate) fn gemm_is_as_fast(self) -> bool {
        matches!(self, Self::Avx512 | Self::Amx | Self::Neon)
    }
}

impl FromStr for Isa {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = ALL.into_iter().find(|isa| isa.as_str() == name);
        let names = || ALL.map(Self::as_str).join(", ");
        found.ok_or_else(|| Error::msg(format!("instruction set {name:?}: expected one of {}", names())))
    }
}

/// The vectors of the instruction set of [`Isa::current`].
pub(crate) fn arch() -> Arch {
    Isa::current().arch().unwrap_or(Arch::Scalar)
}

/// Asked once: a virtual machine takes ten microseconds to answer.
#[cfg(all(target_arch = "x86_64", feature = "x86-v4"))]
fn made_by_amd() -> bool {
    use std::arch::x86_64::{__cpuid, CpuidResult};
    use std::sync::LazyLock;
    static ANSWER: LazyLock<bool> = LazyLock::new(|| {
        let CpuidResult { ebx, ecx, edx, .. } = __cpuid(0);
        [ebx, edx, ecx].map(u32::to_le_bytes).as_flattened() == b"AuthenticAMD"
    });
    *ANSWER
}

/// Whether the processor has AMX for bf16, and the system lets this process use it: Linux grants the tiles on request.
#[cfg(amx)]
#[allow(unsafe_code)]
fn tiles_are_available() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    use std::sync::LazyLock;
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

    /// A wrong name in the environment would let every test of a lower instruction set run on the best.
    #[test]
    fn the_tests_run_on_the_instruction_set_that_the_environment_names() {
        let named = Isa::from_environment().expect("a set of this machine");
        assert_eq!(named.map(Isa::as_str), super::named().as_ref().map(|(_, name)| name.as_str()));
        assert_eq!(Isa::current(), named.unwrap_or_else(Isa::best));
        Isa::current().hold().expect("it is that already");
        for other in Isa::available().into_iter().filter(|isa| *isa != Isa::current()) {
            let message = other.hold().expect_err("the tests run already").to_string();
            assert!(message.contains(Isa::current().as_str()), "{message}");
        }
    }

    /// The variable is read once for a process, so each name needs a process of its own.
    #[test]
    fn a_name_in_the_environment_is_obeyed_or_refused() {
        let obeyed = |variable: &str, name: &str| {
            let test = "cpu::isa::tests::the_tests_run_on_the_instruction_set_that_the_environment_names";
            let mut tests = std::process::Command::new(std::env::current_exe().expect("this program"));
            for other in ENVIRONMENT_VARIABLES {
                tests.env_remove(other);
            }
            let output = tests.args(["--exact", test]).env(variable, name).output().expect("it runs");
            let output = String::from_utf8_lossy(&output.stdout);
            let refused =
                output.contains("1 failed") && output.contains(&format!("{variable}: instruction set"));
            assert_ne!(output.contains("1 passed"), refused, "{name}: {output}");
            !refused
        };
        for variable in ENVIRONMENT_VARIABLES {
            for isa in ALL {
                assert_eq!(obeyed(variable, isa.as_str()), isa.arch().is_some(), "{isa:?}");
            }
            assert!(obeyed(variable, ""));
            assert!(!obeyed(variable, "sse9"));
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn products_of_bytes_use_what_the_set_has() {
        let has = |isa: Isa| isa.arch().is_some();
        let avx2 = if has(Isa::Avx2) { ByteProducts::Avx2 } else { ByteProducts::Portable };
        let vnni = if has(Isa::AvxVnni) { ByteProducts::AvxVnni } else { ByteProducts::Portable };
        for (isa, expected) in [
            (Isa::Portable, ByteProducts::Portable),
            (Isa::Simd128, ByteProducts::Portable),
            (Isa::Neon, ByteProducts::Portable),
            (Isa::Avx2, avx2),
            (Isa::AvxVnni, vnni),
        ] {
            assert_eq!(isa.byte_products(), expected, "{isa:?}");
        }
        for isa in [Isa::Avx512, Isa::Amx] {
            #[cfg(feature = "x86-v4")]
            if has(isa) && is_x86_feature_detected!("avx512vnni") {
                assert_eq!(isa.byte_products(), ByteProducts::Avx512Vnni, "{isa:?}");
                continue;
            }
            assert_eq!(isa.byte_products(), avx2, "{isa:?}");
        }
    }

    #[cfg(target_arch = "aarch64")]
    #[test]
    #[ignore = "names the processors of scripts/arm.sh, which runs it"]
    fn products_use_what_the_emulated_processor_has() {
        let processor = std::env::var("QEMU_CPU").expect("QEMU runs this");
        let (products, pairs) = match &*processor {
            "cortex-a72" | "a64fx" => (ByteProducts::Neon, false),
            "neoverse-n1" => (ByteProducts::NeonDot, false),
            "max" => (ByteProducts::NeonI8mm, true),
            other => panic!("{other}: a processor that is not listed here"),
        };
        assert_eq!((Isa::Neon.byte_products(), Isa::Neon.has_pairs()), (products, pairs), "{processor}");
        assert_eq!(Isa::Portable.byte_products(), ByteProducts::Portable);
        assert!(!Isa::Portable.has_pairs());
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
