//! The limits of a GPU, and the launches that are planned within them. All of it is numbers, so that tests can plan for any
//! GPU.

use candle_core::DType;

/// A kernel, the number of its blocks and threads, and its shared memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Launch {
    pub(crate) kernel: String,
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    /// Bytes per block.
    pub(crate) shared: u32,
}

impl Launch {
    /// `None` if there are more blocks than fit the i32s in which kernels count them.
    pub(crate) fn new(kernel: String, blocks: usize, threads: u32, shared: usize) -> Option<Self> {
        let blocks = i32::try_from(blocks).ok()?.try_into().ok()?;
        Some(Self { kernel, blocks, threads, shared: shared.try_into().ok()? })
    }
}

/// The name of this dtype in kernel names.
pub(crate) fn dtype_name(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F32 => Some("f32"),
        DType::F16 => Some("f16"),
        DType::BF16 => Some("bf16"),
        _ => None,
    }
}

/// The limits of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GpuLimits {
    pub(crate) multiprocessors: usize,
    /// The most bytes of shared memory that a block can have.
    pub(crate) shared: usize,
    /// Bytes of the L2 cache.
    pub(crate) l2: usize,
    /// The compute capability that the kernels it runs were compiled for, as a number: 90 for 9.0; 0 if it runs none.
    pub(crate) capability: u32,
}

/// Chooses the one of the `compiled` capabilities that a GPU of capability `own` runs: machine code of the same major number,
/// up to its own; or else PTX, which is there for the lowest; 0 if neither fits. `compiled` ascends.
pub(super) fn code_for(own: u32, compiled: &[u32]) -> u32 {
    let machine_code = compiled.iter().rev().find(|&&one| one / 10 == own / 10 && one <= own);
    let ptx = compiled.first().filter(|&&lowest| lowest <= own);
    machine_code.or(ptx).copied().unwrap_or(0)
}

impl GpuLimits {
    /// Whether our kernels run there in this dtype: mma.m16n8k8 and ldmatrix come with compute capability 7.5, bf16 and
    /// cp.async with 8.0.
    pub(crate) fn has_kernels_for(self, dtype: DType) -> bool {
        self.capability >= if dtype == DType::BF16 { 80 } else { 75 }
    }
}

#[cfg(test)]
mod tests {
    use super::code_for;

    #[test]
    fn a_gpu_runs_machine_code_of_its_generation_or_the_lowest_ptx() {
        for (own, compiled, expected) in [
            (90, &[80, 90][..], 90),
            (86, &[80, 90], 80),
            (86, &[75, 90], 75),
            (80, &[80, 86], 80),
            (120, &[80, 90], 80),
            (75, &[80, 90], 0),
            (75, &[75], 75),
        ] {
            assert_eq!(code_for(own, compiled), expected, "{own} {compiled:?}");
        }
    }
}
