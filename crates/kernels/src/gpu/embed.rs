//! The embeddings of tokens plus those of their positions, in one pass: `cuda/layers.cu`.

use super::launch_plan::Launch;
use super::layers::launch_of_units;
use candle_core::DType;

/// The tables of an embedding, and the places of its rows: `Tables` in `layers.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tables {
    width: i32,
    tokens: i32,
    positions: i32,
    places: i32,
    first: i32,
}

const _: () = assert!(size_of::<Tables>() == 20);

/// The launch for `rows` sums of rows of two tables (tokens, width) and (positions, width), the tables, and the number of 16-byte
/// units; `None` if there is no kernel for it, or a table or the list of places is empty. Row r has place r % places: position
/// `first` + place, or the one that a list has there.
pub(crate) fn embed_launch(
    dtype: DType,
    rows: usize,
    [tokens, positions, width]: [usize; 3],
    places: usize,
    first: usize,
) -> Option<(Launch, Tables, usize)> {
    let (launch, units) = launch_of_units("embed", dtype, rows, width)?;
    let number = |n: usize| i32::try_from(n).ok();
    let rows_of_table = |n: usize| number(n).filter(|_| n > 0);
    let tables = Tables {
        width: number(width)?,
        tokens: rows_of_table(tokens)?,
        positions: rows_of_table(positions)?,
        places: rows_of_table(places)?,
        first: number(first)?,
    };
    number(first + places)?; // the last position
    Some((launch, tables, units))
}

#[cfg(feature = "cuda")]
pub(crate) use ops::embed;

#[cfg(feature = "cuda")]
mod ops {
    #![allow(unsafe_code)] // kernels take pointers; each unsafe block says why they are sound

    use super::{Tables, embed_launch};
    use crate::cpu::dispatch::Dispatch;
    use crate::gpu::device::{UNIT, aligned, function, launch, view, view_of};
    use crate::gpu::launch_plan::Launch;
    use crate::gpu::layers::fits;
    use candle_core::backend::BackendStorage;
    use candle_core::cuda_backend::CudaDType;
    use candle_core::cuda_backend::cudarc::driver::{DeviceRepr, PushKernelArg};
    use candle_core::{CpuStorage, CudaStorage, CustomOp3, DType, Layout, Result, Shape, Tensor};
    use half::{bf16, f16};

    /// `tokens[ids] + positions[places]`, with NaN where a table has no such row: `ids` u32 (B, T), `tokens` (V, C), `positions` (N,
    /// C) -> (B, T, C); or `None` if there is no kernel for it. Position t of each text has place `first + t`, or the one that `list`
    /// has: u32 (1, T) or (B, T).
    pub(crate) fn embed(
        dispatch: Dispatch,
        ids: &Tensor,
        [tokens, positions]: [&Tensor; 2],
        first: usize,
        list: Option<&Tensor>,
    ) -> Result<Option<Tensor>> {
        let (b, t) = ids.dims2()?;
        let (vocabulary, width) = tokens.dims2()?;
        let (length, of_positions) = positions.dims2()?;
        let beside = |x: &Tensor| x.dtype() == DType::U32 && x.device().same_device(tokens.device());
        let of_ids = |list: &Tensor| beside(list) && (list.dims() == [1, t] || list.dims() == [b, t]);
        let all_fit = beside(ids) && list.is_none_or(of_ids) && of_positions == width && b * t > 0;
        if !fits(dispatch, &[tokens, positions])? || !all_fit {
            return Ok(None);
        }
        let places = list.map_or(t, Tensor::elem_count);
        let planned = embed_launch(tokens.dtype(), b * t, [vocabulary, length, width], places, first);
        let Some((launch, tables, units)) = planned else { return Ok(None) };
        #[allow(clippy::cast_possible_wrap)] // checked by `embed_launch`
        let op =
            Embed { launch, units: units as i64, tables, list: list.map(Tensor::contiguous).transpose()? };
        let tokens = aligned(tokens, UNIT)?;
        tokens.apply_op3_no_bwd(&aligned(positions, UNIT)?, &ids.contiguous()?, &op).map(Some)
    }

    /// The sum of rows of two tables.
    struct Embed {
        launch: Launch,
        units: i64,
        tables: Tables,
        /// u32 (1, T) or (B, T)
        list: Option<Tensor>,
    }

    // SAFETY: i32s in C's order; `layers.cu` has the same struct.
    unsafe impl DeviceRepr for Tables {}

    impl Embed {
        fn run<E: CudaDType + DeviceRepr>(
            &self,
            tokens: (&CudaStorage, &Layout),
            positions: (&CudaStorage, &Layout),
            ids: (&CudaStorage, &Layout),
        ) -> Result<(CudaStorage, Shape)> {
            let device = tokens.0.device();
            let stream = device.cuda_stream();
            let (b, t) = ids.1.shape().dims2()?;
            let shape = Shape::from((b, t, tokens.1.dims()[1]));
            let function = function(&stream, &self.launch)?;
            let tokens = view::<E>(tokens)?;
            let positions = view::<E>(positions)?;
            let ids = view::<u32>(ids)?;
            let list = self.list.as_ref().map(Tensor::storage_and_layout);
            let list = list.as_ref().map(|(storage, layout)| view_of::<u32>(storage, layout)).transpose()?;
            // SAFETY: the kernel writes every element.
            let mut out = unsafe { device.alloc::<E>(shape.elem_count())? };
            let nothing = 0u64; // a null pointer
            let mut args = stream.launch_builder(&function);
            args.arg(&ids).arg(&tokens).arg(&positions);
            match &list {
                Some(list) => args.arg(list),
                None => args.arg(&nothing),
            };
            args.arg(&mut out).arg(&self.units).arg(&self.tables);
            // SAFETY: ids are (B, T), out (B, T, width), the tables (tokens, width) and (positions, width), and the list, if there is
            // one, has as many numbers as there are places. All are contiguous, and what is read in units aligned. The kernel reads
            // no row that a table does not have.
            unsafe { launch(args, &self.launch)? };
            Ok((CudaStorage::wrap_cuda_slice(out, device.clone()), shape))
        }
    }

    impl CustomOp3 for Embed {
        fn name(&self) -> &'static str {
            "embed"
        }

        fn cpu_fwd(
            &self,
            _: &CpuStorage,
            _: &Layout,
            _: &CpuStorage,
            _: &Layout,
            _: &CpuStorage,
            _: &Layout,
        ) -> Result<(CpuStorage, Shape)> {
            candle_core::bail!("embeddings: the kernel is for CUDA, but the tables are on the CPU")
        }

        fn cuda_fwd(
            &self,
            tokens: &CudaStorage,
            tokens_layout: &Layout,
            positions: &CudaStorage,
            positions_layout: &Layout,
            ids: &CudaStorage,
            ids_layout: &Layout,
        ) -> Result<(CudaStorage, Shape)> {
            let tokens = (tokens, tokens_layout);
            let positions = (positions, positions_layout);
            let ids = (ids, ids_layout);
            match tokens.0.dtype() {
                DType::F16 => self.run::<f16>(tokens, positions, ids),
                DType::BF16 => self.run::<bf16>(tokens, positions, ids),
                _ => self.run::<f32>(tokens, positions, ids),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_parts_of_16_bytes_and_positions_beyond_numbers_have_no_kernel() {
        let launch =
            |dtype, width, first| embed_launch(dtype, 6, [50, 40, width], 3, first).map(|found| found.2);
        assert_eq!(launch(DType::BF16, 40, 2), Some(30));
        assert_eq!(launch(DType::BF16, 20, 2), None);
        assert_eq!(launch(DType::F64, 16, 2), None);
        assert_eq!(launch(DType::F32, 16, i32::MAX as usize), None);
        for tables in [[0, 40, 16], [50, 0, 16]] {
            assert!(embed_launch(DType::F32, 6, tables, 3, 2).is_none(), "{tables:?}");
        }
    }
}
