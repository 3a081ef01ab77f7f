//! What a plan has to know of a GPU.

use candle_core::DType;

/// The limits of a GPU, as numbers, so that tests can plan for any.
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

/// Which of the `compiled` capabilities a GPU of capability `own` runs: machine code of the same major number, up to its
/// own; or else PTX, which is there for the lowest. Both ascend.
#[cfg(any(feature = "cuda", test))]
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
