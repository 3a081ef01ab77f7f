//! The search of rows of logits on a GPU for what choosing the next token needs: `cuda/candidates.cu`.

use candle_core::{DType, Device, Result, Tensor};

/// A kernel's task: it looks in rows of logits on CUDA for what the host needs to choose the next tokens without a copy of all of them: the
/// highest logit, the tokens with the k highest ones, the sum of all weights, or the token that a draw from all of them gives.
///
/// A weight is `exp((logit - highest) / temperature)`, and logits are those after the repetition penalty (Keskar et al. 2019).
#[derive(Debug, Clone, PartialEq)]
pub struct TokenSearch {
    /// The number of tokens to list, those with the highest logits: at most [`MOST`](Self::MOST), and at most V are listed.
    pub listed: usize,
    /// The temperature of draws and weights.
    pub temperature: f64,
    /// Divides positive logits and multiplies negative ones, of tokens that their text has; 1 changes nothing.
    pub penalty: f32,
    /// Whether to sum the weights.
    pub sums: bool,
    /// The seed of a draw from all tokens, if one is wanted: the token of weight w arrives after -ln u / w, and the first to arrive
    /// is drawn (the Gumbel-max trick, Maddison et al. 2014). Its random number u is `(n + 1/2) / 2^52`, where n has 52 bits of
    /// Philox4x32-10 (Salmon et al. 2011) with the seed as its key, lower half first, at the counter (id / 2, place, 0, 0): of an even
    /// id, all of the second word and the upper 20 bits of the first; of an odd one, likewise of the fourth and the third.
    pub seed: Option<u64>,
}

/// The result of a [`TokenSearch`] in one row.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundTokens {
    /// The first token whose logit is not finite, and that; nothing else has a meaning then.
    pub not_finite: Option<(u32, f32)>,
    /// The token with the highest logit, and this; of equal ones, the lowest id.
    pub highest: (u32, f32),
    /// The token that is drawn. `None` if none was asked for, or if two arrive so close together that only f64 can tell the first.
    pub drawn: Option<u32>,
    /// The sum of the weights, with an error of at most [`TokenSearch::ERROR_OF_SUM`]; 0 if it was not asked for.
    pub sum: f64,
    /// The tokens with the highest logits, and these, in this order; of equal ones, the lower id first, and 0 before -0.
    pub listed: Vec<(u32, f32)>,
}

/// The words of a row's result before the tokens that are listed.
const HEADER: usize = 8;
/// A lead of the first to arrive above this is certain: it is a difference of two logarithms, each with an error of at most 2e-5.
const CERTAIN: f32 = 1e-4;
/// The most logits of a row: the kernel counts a little beyond them.
const WIDEST: usize = i32::MAX as usize - 2048;

impl TokenSearch {
    /// The most tokens that can be listed.
    pub const MOST: usize = 1024;
    /// The temperatures at which draws and weights are computed.
    pub const TEMPERATURES: std::ops::RangeInclusive<f64> = 1e-30..=1e30;
    /// The largest error of a sum of weights, as a part of the sum, that comes from the order in which they are added.
    pub const ERROR_OF_SUM: f64 = 1e-9;

    /// Whether this device has the kernel: CUDA from compute capability 7.5 on.
    ///
    /// # Errors
    /// When the device does not answer, or another host thread uses it though it was not opened by [`open_cuda`](crate::open_cuda).
    pub fn runs_on(device: &Device) -> Result<bool> {
        #[cfg(feature = "cuda")]
        if let Device::Cuda(device) = device {
            return Ok(crate::gpu::device::gpu_limits(device)?.has_kernels_for(DType::F32));
        }
        let _ = device;
        Ok(false)
    }

    /// The number of words that [`find`](Self::find) writes for a row of `vocabulary` logits.
    #[must_use]
    pub fn words(&self, vocabulary: usize) -> usize {
        HEADER + 2 * self.listed.min(vocabulary)
    }

    /// The number of words that [`find`](Self::find) reads of each row beside its logits.
    #[must_use]
    pub fn row_words(&self, vocabulary: usize) -> usize {
        match (self.penalizes(), self.seed) {
            (true, _) => 1 + vocabulary.div_ceil(32),
            (false, Some(_)) => 1,
            (false, None) => 0,
        }
    }

    /// The words that [`find`](Self::find) reads of a row beside its logits: the place of its draw, and a bit for each token that `text` has. Ids
    /// beyond the vocabulary are left out.
    ///
    /// # Errors
    /// When a draw's place does not fit a u32.
    pub fn row(&self, vocabulary: usize, place: usize, text: &[u32]) -> Result<Vec<u32>> {
        let mut words = vec![0; self.row_words(vocabulary)];
        if let Some((first, bits)) = words.split_first_mut() {
            *first = match u32::try_from(place) {
                Ok(place) => place,
                Err(_) if self.seed.is_none() => 0, // nothing reads it
                Err(_) => {
                    candle_core::bail!("token search: the place of the draw is {place}, expected below 2^32")
                }
            };
            for &id in text.iter().filter(|&&id| (id as usize) < vocabulary) {
                if let Some(word) = bits.get_mut(id as usize / 32) {
                    *word |= 1 << (id % 32);
                }
            }
        }
        Ok(words)
    }

    #[allow(clippy::float_cmp)] // exactly 1 is the documented "off"
    fn penalizes(&self) -> bool {
        self.penalty != 1.0
    }

    /// Searches rows of logits, and writes what it finds over `found`, which [`read`](Self::read) copies to the host. It neither waits nor
    /// allocates, so that it can be part of a [`CudaGraph`](super::graph::CudaGraph).
    ///
    /// # Shapes
    /// `logits` f32 (B, V); `rows` u32 (B, [`row_words`](Self::row_words)), of each row what [`row`](Self::row) gives, or `None` if that is
    /// nothing; `found` u32 (B, [`words`](Self::words)), contiguous
    ///
    /// # Errors
    /// When a shape or a dtype is another one, the tensors are on several devices or share memory, more than [`MOST`](Self::MOST) tokens are
    /// to be listed, the penalty is not above 0, or the temperature is none of [`TEMPERATURES`](Self::TEMPERATURES) though it counts; and
    /// where the kernel does not [run](Self::runs_on).
    pub fn find(&self, logits: &Tensor, rows: Option<&Tensor>, found: &Tensor) -> Result<()> {
        self.check(logits, rows, found)?;
        #[cfg(feature = "cuda")]
        if TokenSearch::runs_on(logits.device())? {
            return cuda::find(self, logits.dims2()?, logits, rows, found);
        }
        candle_core::bail!("token search: no kernel for {:?}", logits.device().location())
    }

    fn check(&self, logits: &Tensor, rows: Option<&Tensor>, found: &Tensor) -> Result<()> {
        let (b, v) = logits.dims2()?;
        let counts = self.sums || self.seed.is_some();
        if counts && !Self::TEMPERATURES.contains(&self.temperature) {
            candle_core::bail!(
                "token search: the temperature is {}, expected 1e-30 to 1e30",
                self.temperature
            )
        }
        if !(self.penalty > 0.0 && self.penalty.is_finite()) {
            candle_core::bail!(
                "token search: the penalty is {}, expected a finite number above 0",
                self.penalty
            )
        }
        if self.listed > Self::MOST {
            candle_core::bail!("token search: {} tokens to list, at most {}", self.listed, Self::MOST)
        }
        if logits.dtype() != DType::F32 || b == 0 || v == 0 || v > WIDEST {
            candle_core::bail!(
                "token search: logits must be f32 (B, V), B and V not 0 and V at most {WIDEST}, got {} {:?}",
                logits.dtype().as_str(),
                logits.dims()
            )
        }
        let expected = [b, self.words(v)];
        if found.dtype() != DType::U32 || found.dims() != expected || !found.is_contiguous() {
            candle_core::bail!("token search: the result must be u32 {expected:?}, got {found:?}")
        }
        let words = self.row_words(v);
        match rows {
            None if words > 0 => {
                candle_core::bail!("token search: the rows must be u32 ({b}, {words}), got none")
            }
            Some(rows) if words == 0 || rows.dtype() != DType::U32 || rows.dims() != [b, words] => {
                candle_core::bail!(
                    "token search: the rows must be u32 ({b}, {words}), none if that is 0, got {} {:?}",
                    rows.dtype().as_str(),
                    rows.dims()
                )
            }
            _ => {}
        }
        if [Some(found), rows].into_iter().flatten().any(|t| !t.device().same_device(logits.device())) {
            candle_core::bail!("token search: all tensors must be on one device, opened once")
        }
        Ok(())
    }

    /// Copies what [`find`](Self::find) has written to the host: one entry for each row.
    ///
    /// # Errors
    /// When the device does not answer, or `found` has another shape.
    pub fn read(&self, found: &Tensor) -> Result<Vec<FoundTokens>> {
        found.to_vec2()?.iter().map(|words| self.read_row(words)).collect()
    }

    fn read_row(&self, words: &[u32]) -> Result<FoundTokens> {
        let most = HEADER + 2 * self.listed;
        if words.len() < HEADER || words.len() > most || !words.len().is_multiple_of(2) {
            candle_core::bail!(
                "token search: a row of the result has {} words, expected {HEADER} to {most}",
                words.len()
            )
        }
        let (header, listed) = words.split_at(HEADER);
        let token = |at: &[u32]| (at[0], f32::from_bits(at[1]));
        let mut listed: Vec<(u32, f32)> = listed.chunks_exact(2).map(token).collect();
        listed.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let is_certain = self.seed.is_some() && f32::from_bits(header[5]) > CERTAIN;
        let sum = f64::from_bits(u64::from(header[7]) << 32 | u64::from(header[6]));
        Ok(FoundTokens {
            not_finite: (header[0] != u32::MAX).then(|| token(header)),
            highest: token(&header[2..]),
            drawn: is_certain.then_some(header[4]),
            sum: if self.sums { sum } else { 0.0 },
            listed,
        })
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    #![allow(unsafe_code)] // kernels take pointers; each unsafe block says why they are sound

    use super::TokenSearch;
    use crate::gpu::device::{function, launch, view};
    use crate::gpu::launch_plan::Launch;
    use candle_core::backend::BackendStorage;
    use candle_core::cuda_backend::cudarc::driver::{DeviceRepr, PushKernelArg};
    use candle_core::{CpuStorage, CudaStorage, InplaceOp3, Layout, Result, Tensor};

    /// Threads of a block and its bytes of shared memory in `candidates.cu`, which has a block for each row.
    const THREADS: u32 = 1024;
    const SHARED: usize = 12816;

    /// The settings of a launch. `candidates.cu` has the same struct.
    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Search {
        rate: f64,
        seed: [u32; 2],
        width: i32,
        listed: i32,
        row_words: i32,
        penalty: f32,
        draws: i32,
        sums: i32,
    }

    const _: () = assert!(size_of::<Search>() == 40 && std::mem::offset_of!(Search, row_words) == 24);

    // SAFETY: numbers in C's order; `candidates.cu` has the same struct.
    unsafe impl DeviceRepr for Search {}

    struct Find {
        launch: Launch,
        search: Search,
    }

    #[allow(clippy::cast_possible_truncation)] // a seed in halves
    pub(super) fn find(
        of: &TokenSearch,
        (b, v): (usize, usize),
        logits: &Tensor,
        rows: Option<&Tensor>,
        found: &Tensor,
    ) -> Result<()> {
        let Some(launch) = Launch::new("candidates_f32".to_owned(), b, THREADS, SHARED) else {
            candle_core::bail!("token search: too many rows, {b}")
        };
        let seed = of.seed.unwrap_or(0);
        let search = Search {
            rate: 1.0 / of.temperature,
            seed: [seed as u32, (seed >> 32) as u32],
            width: i32::try_from(v)?,
            listed: i32::try_from(of.listed.min(v))?,
            row_words: i32::try_from(of.row_words(v))?,
            penalty: of.penalty,
            draws: i32::from(of.seed.is_some()),
            sums: i32::from(of.sums),
        };
        let logits = logits.contiguous()?;
        let rows = rows.map_or_else(|| Ok(logits.clone()), Tensor::contiguous)?; // the kernel reads none
        found.inplace_op3(&logits, &rows, &Find { launch, search })
    }

    impl InplaceOp3 for Find {
        fn name(&self) -> &'static str {
            "token-search"
        }

        fn cpu_fwd(
            &self,
            _: &mut CpuStorage,
            _: &Layout,
            _: &CpuStorage,
            _: &Layout,
            _: &CpuStorage,
            _: &Layout,
        ) -> Result<()> {
            candle_core::bail!("token search: the kernel is for CUDA, but the result is on the CPU")
        }

        fn cuda_fwd(
            &self,
            found: &mut CudaStorage,
            layout: &Layout,
            logits: &CudaStorage,
            of_logits: &Layout,
            rows: &CudaStorage,
            of_rows: &Layout,
        ) -> Result<()> {
            let stream = found.device().cuda_stream();
            let function = function(&stream, &self.launch)?;
            let logits = view::<f32>((logits, of_logits))?;
            let has_rows = self.search.row_words > 0;
            let rows = has_rows.then(|| view::<u32>((rows, of_rows))).transpose()?;
            let mut found = found.as_cuda_slice_mut::<u32>()?.slice_mut(layout.start_offset()..);
            let nothing = 0u64; // a null pointer
            let mut args = stream.launch_builder(&function);
            args.arg(&logits);
            match &rows {
                Some(rows) => args.arg(rows),
                None => args.arg(&nothing),
            };
            args.arg(&mut found).arg(&self.search);
            // SAFETY: logits are (B, width), rows (B, row_words) if that is above 0, and the result (B, 8 + 2·listed), all on this device, as
            // `check` found; the result is contiguous, and `find` made the others so. There is a block for each row, and at most `width`
            // tokens are listed.
            unsafe { launch(args, &self.launch) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search() -> TokenSearch {
        TokenSearch { listed: 2, temperature: 1.0, penalty: 1.0, sums: false, seed: None }
    }

    #[test]
    fn a_row_has_a_bit_for_each_token_of_its_text() -> Result<()> {
        let penalizing = TokenSearch { penalty: 1.2, ..search() };
        assert_eq!(penalizing.row(70, 9, &[0, 33, 69, 33, 70, 1000])?, [9, 1, 2, 32]);
        let drawing = TokenSearch { seed: Some(1), ..search() };
        assert_eq!(drawing.row(70, 9, &[0])?, [9]);
        assert!(search().row(70, 9, &[0])?.is_empty());
        Ok(())
    }

    #[test]
    fn a_result_is_read_in_order() -> Result<()> {
        let bits = f32::to_bits;
        let sum = 2.5f64.to_bits();
        #[allow(clippy::cast_possible_truncation)] // in halves
        let halves = [sum as u32, (sum >> 32) as u32];
        let words = |lead| {
            [&[u32::MAX, 0, 7, bits(3.0), 5, bits(lead)], &halves[..], &[8, bits(3.0), 7, bits(3.0)]].concat()
        };
        let all = TokenSearch { sums: true, seed: Some(0), ..search() };
        let found = all.read_row(&words(0.1))?;
        assert_eq!((found.not_finite, found.highest, found.drawn), (None, (7, 3.0), Some(5)));
        assert!((found.sum - 2.5).abs() < f64::EPSILON);
        assert_eq!(found.listed, [(7, 3.0), (8, 3.0)]);
        assert_eq!(all.read_row(&words(1e-5))?.drawn, None, "too close");
        assert_eq!(search().read_row(&words(0.1))?.drawn, None, "not asked for");
        assert!(search().read_row(&[0; 7]).is_err());
        Ok(())
    }
}
