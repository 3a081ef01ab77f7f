//! A product's bias, with its keys and values written into a cache in the same pass: `cuda/layers.cu`.

use super::launch_plan::Launch;
use super::layers::{launch_of_units, unit};
use candle_core::DType;

/// The places of a product's columns: `Append` in `epilogues.cuh`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct AppendShape {
    width: i32,
    queries: i32,
    dim: i32,
    heads: i32,
    capacity: i32,
    past: i32,
    positions: i32,
}

const _: () = assert!(size_of::<AppendShape>() == 28);

/// The launch for a product of `positions` rows for each text, whose columns from `queries` on go into a cache (B, heads, capacity,
/// dim) behind `past` positions, its shape, and the number of 16-byte units; `None` if there is no kernel for it.
pub(crate) fn append_launch(
    dtype: DType,
    queries: usize,
    sizes: [usize; 4],
    past: usize,
    positions: usize,
) -> Option<(Launch, AppendShape, usize)> {
    let shape = AppendShape::new(dtype, queries, sizes, past, positions)?;
    let [b, heads, _, dim] = sizes;
    let (launch, units) = launch_of_units("finish_append", dtype, b * positions, queries + heads * dim)?;
    Some((launch, shape, units))
}

impl AppendShape {
    /// The places in a cache (B, heads, capacity, dim) behind `past` positions; `None` if heads do not divide into 16-byte units.
    pub(super) fn new(
        dtype: DType,
        queries: usize,
        [_, heads, capacity, dim]: [usize; 4],
        past: usize,
        positions: usize,
    ) -> Option<Self> {
        unit(dtype, dim)?; // each unit goes to one place
        let number = |n: usize| i32::try_from(n).ok();
        Some(Self {
            width: number(queries + heads * dim)?,
            queries: number(queries)?,
            dim: number(dim)?,
            heads: number(heads)?,
            capacity: number(capacity)?,
            past: number(past)?,
            positions: number(positions)?,
        })
    }
}

#[cfg(feature = "cuda")]
pub(crate) use ops::linear_append;
#[cfg(feature = "cuda")]
pub(super) use ops::{number_of_positions, room};

#[cfg(feature = "cuda")]
mod ops {
    #![allow(unsafe_code)] // kernels take pointers; each unsafe block says why they are sound

    use super::{AppendShape, append_launch};
    use crate::cpu::dispatch::Dispatch;
    use crate::gpu::append_at::AppendAt;
    use crate::gpu::blas_lt;
    use crate::gpu::device::{UNIT, aligned, function, launch, view_of};
    use crate::gpu::launch_plan::Launch;
    use crate::gpu::layers::fits;
    use candle_core::backend::BackendStorage;
    use candle_core::cuda_backend::CudaDType;
    use candle_core::cuda_backend::cudarc::driver::{DeviceRepr, PushKernelArg};
    use candle_core::{CpuStorage, CudaStorage, DType, InplaceOp2, Layout, Result, Tensor};
    use half::{bf16, f16};

    /// `x·W + bias`, whose columns behind the queries go into `cache` (B, heads, capacity, D) at a place: `x` (B·T,
    /// in), `weight` (in, queries + heads·D) -> (B·T, queries + heads·D), of which only the queries hold anything; or `None` if no
    /// kernel does both. The cache is a whole tensor with room for T more positions.
    pub(crate) fn linear_append(
        dispatch: Dispatch,
        [x, weight, bias]: [&Tensor; 3],
        cache: &Tensor,
        AppendAt { past, on_gpu }: AppendAt,
    ) -> Result<Option<Tensor>> {
        let sizes @ (b, heads, _, dim) = cache.dims4()?;
        let rows = x.dim(0)?;
        let width = bias.elem_count();
        if !fits(dispatch, &[x, weight, bias, cache])? || rows == 0 || b == 0 || blas_lt::takes(x)? {
            return Ok(None);
        }
        let positions = room(cache, rows, width, past)?;
        let queries = width - heads * dim;
        let planned = append_launch(x.dtype(), queries, sizes.into(), past, positions);
        let Some((launch, shape, units)) = planned else { return Ok(None) };
        #[allow(clippy::cast_possible_wrap)] // checked by `append_launch`
        let op = FinishAppend {
            launch,
            units: units as i64,
            shape,
            bias: aligned(bias, UNIT)?,
            past: on_gpu.map(number_of_positions).transpose()?,
        };
        let product = x.matmul(&weight.contiguous()?)?; // (B·T, out); no other tensor shares its memory
        cache.inplace_op2(&product, &op)?;
        Ok(Some(product))
    }

    /// The positions that `rows` rows of `width` add to each text of a cache that has texts, if they fit there: (B, heads, capacity, D),
    /// a whole tensor.
    pub(in crate::gpu) fn room(cache: &Tensor, rows: usize, width: usize, past: usize) -> Result<usize> {
        let sizes @ (b, heads, capacity, dim) = cache.dims4()?;
        let positions = rows / b;
        let is_whole = cache.is_contiguous() && cache.layout().start_offset() == 0;
        if rows != b * positions || width < heads * dim || past + positions > capacity || !is_whole {
            candle_core::bail!(
                "cache: {rows} rows of {width} do not fit behind {past} positions of {sizes:?}"
            )
        }
        Ok(positions)
    }

    /// A number of positions that a kernel reads: u32 (1). Kernels write to no place that the cache does not have, whatever it is.
    pub(in crate::gpu) fn number_of_positions(past: &Tensor) -> Result<Tensor> {
        if past.dims() != [1] || past.dtype() != DType::U32 || !past.device().is_cuda() {
            candle_core::bail!(
                "cache: the number of its positions must be u32 [1] on the GPU, got {:?} {:?}",
                past.dtype(),
                past.dims()
            )
        }
        Ok(past.clone())
    }

    /// The bias of a product: its queries stay in place, and the rest goes into the cache, which is the tensor that changes for Candle.
    struct FinishAppend {
        launch: Launch,
        units: i64,
        shape: AppendShape,
        /// (out)
        bias: Tensor,
        /// u32 (1), in place of the number in `shape`
        past: Option<Tensor>,
    }

    // SAFETY: i32s in C's order; `layers.cu` has the same struct.
    unsafe impl DeviceRepr for AppendShape {}

    impl FinishAppend {
        fn run<E: CudaDType + DeviceRepr>(&self, cache: &mut CudaStorage, x: &CudaStorage) -> Result<()> {
            let stream = cache.device().cuda_stream();
            let function = function(&stream, &self.launch)?;
            let (bias, bias_layout) = self.bias.storage_and_layout();
            let bias = view_of::<E>(&bias, bias_layout)?;
            let past = self.past.as_ref().map(Tensor::storage_and_layout);
            let past = past.as_ref().map(|(storage, layout)| view_of::<u32>(storage, layout)).transpose()?;
            let x = x.as_cuda_slice::<E>()?;
            let cache = cache.as_cuda_slice_mut::<E>()?;
            let nothing = 0u64; // a null pointer
            let mut args = stream.launch_builder(&function);
            args.arg(x).arg(&bias).arg(cache);
            match &past {
                Some(past) => args.arg(past),
                None => args.arg(&nothing),
            };
            args.arg(&self.units).arg(&self.shape);
            // SAFETY: x is (B·T, width), the cache (B, heads, capacity, dim) with room for T more positions, both from the start of
            // their memory, and the bias (width). All are contiguous and aligned. The kernel writes to x, too: a new product that
            // nothing else has seen, on the stream of all that will read it.
            unsafe { launch(args, &self.launch) }
        }
    }

    impl InplaceOp2 for FinishAppend {
        fn name(&self) -> &'static str {
            "finish-append"
        }

        fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<()> {
            candle_core::bail!("cache: the kernel is for CUDA, but the cache is on the CPU")
        }

        fn cuda_fwd(&self, cache: &mut CudaStorage, _: &Layout, x: &CudaStorage, _: &Layout) -> Result<()> {
            match x.dtype() {
                DType::F16 => self.run::<f16>(cache, x),
                DType::BF16 => self.run::<bf16>(cache, x),
                _ => self.run::<f32>(cache, x),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_and_rows_of_parts_of_16_bytes_have_no_kernel() {
        let launch = |queries, dim| append_launch(DType::F32, queries, [2, 4, 10, dim], 3, 5);
        assert_eq!(launch(12, 12).map(|(launch, _, units)| (launch.blocks, units)), Some((2, 150)));
        assert_eq!(launch(12, 6), None);
        assert_eq!(launch(10, 12), None);
    }
}
