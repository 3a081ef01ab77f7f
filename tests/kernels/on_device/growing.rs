//! Steps that are repeated while a cache grows, whose length the GPU reads: one by one, and as a CUDA graph. The CPU has neither.

use super::joined::equal;
use super::{DTYPES, numbers};
use crate::common::{Result, test_device};
use candle_core::{DType, Device, Tensor};
use candle_fused::attention::{HeadLayout, Mask, Sdpa};
use candle_fused::cache::RowCache;
use candle_fused::{CudaGraph, Implementation, InputNorm, Weight, WeightLayout};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The positions that a cache has room for: the keys of a head are split over up to five blocks.
const CAPACITY: usize = 320;

/// Opening a device waits for all streams, which ends the recording of a graph: one test at a time, after the other tests' device.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    super::device();
    guard
}

/// A device with a stream of its own: what other tests do on it while a graph is recorded would be recorded, too.
fn device() -> Result<Device> {
    Ok(if test_device().is_cuda() { Device::new_cuda_with_stream(0)? } else { Device::Cpu })
}

/// A layer that appends one position of `b` texts, with `h` heads `d` wide, and attends.
struct Layer {
    b: usize,
    h: usize,
    d: usize,
    dtype: DType,
    device: Device,
    weight: Weight,
    bias: Tensor,
    scale: Tensor,
    /// u8 (B, capacity)
    padding: Option<Tensor>,
}

const N_IN: usize = 24;

impl Layer {
    fn new(b: usize, h: usize, d: usize, dtype: DType, padded: bool) -> Result<Self> {
        let device = device()?;
        let width = 3 * h * d;
        let factors = numbers(N_IN * width, 50_000)?.affine(0.2, 0.)?.reshape((N_IN, width))?;
        let visible = (0..b * CAPACITY).map(|i| u8::from(i % CAPACITY >= 3 * (i / CAPACITY)));
        let padding = Tensor::from_iter(visible, &device)?.reshape((b, CAPACITY))?;
        let row = |width, salt| numbers(width, salt)?.to_dtype(dtype)?.to_device(&device);
        let weight = Weight::plain(factors.to_dtype(dtype)?.to_device(&device)?, WeightLayout::InOut)?;
        Ok(Self {
            b,
            h,
            d,
            dtype,
            weight: weight.with_implementation(Implementation::Fused),
            bias: row(width, 200_000)?,
            scale: row(N_IN, 300_000)?,
            padding: padded.then_some(padding),
            device,
        })
    }

    /// This layer for another number of texts, without padding.
    fn of_texts(&self, b: usize) -> Self {
        Self {
            b,
            device: self.device.clone(),
            weight: self.weight.clone(),
            bias: self.bias.clone(),
            scale: self.scale.clone(),
            padding: None,
            ..*self
        }
    }

    fn sdpa(&self) -> Sdpa {
        Sdpa {
            heads: Some(HeadLayout::all(self.h, self.d)),
            implementation: Implementation::Fused,
            ..Sdpa::default()
        }
    }

    fn x(&self, salt: usize) -> Result<Tensor> {
        let x = numbers(self.b * N_IN, 1000 * salt)?.reshape((self.b, 1, N_IN))?;
        Ok(x.to_dtype(self.dtype)?.to_device(&self.device)?)
    }

    /// A cache that holds `past` positions, and NaN behind them.
    fn cache(&self, past: usize) -> Result<RowCache> {
        let &Self { b, h, d, dtype, .. } = self;
        let held = numbers(b * 2 * h * CAPACITY * d, 7)?.reshape((b, 2 * h, CAPACITY, d))?;
        let nan = Tensor::full(f64::NAN, (b, 2 * h, CAPACITY - past, d), &Device::Cpu)?;
        let rows = if past == 0 { nan } else { Tensor::cat(&[&held.narrow(2, 0, past)?, &nan], 2)? };
        let mut cache = RowCache::new([b, 2 * h, CAPACITY, d], dtype, &self.device)?;
        cache.append(&rows.to_dtype(dtype)?.to_device(&self.device)?)?;
        cache.truncate(past);
        Ok(cache)
    }

    /// The context (B, 1, H, D) of a new position; `None` without a kernel.
    fn step(&self, cache: &mut RowCache, x: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let norm = InputNorm { weight: &self.scale, bias: &self.scale, eps: 1e-5 };
        let weight = &self.weight;
        let bias = Some(&self.bias);
        let appended = match cache.append_normed_product(weight, bias, x, norm)? {
            None => cache.append_product(weight, bias, x)?,
            appended => appended,
        };
        let Some((q, rows)) = appended else { return Ok(None) };
        let q = q.transpose(1, 2)?; // (B, H, 1, D)
        let k = rows.narrow(1, 0, self.h)?;
        let v = rows.narrow(1, self.h, self.h)?;
        let context = if let Some(past) = cache.past() {
            self.sdpa().forward_at(&q, &k, &v, self.padding.as_ref(), past)?
        } else {
            let padding = self.padding.as_ref().map(|all| all.narrow(1, 0, cache.len())).transpose()?;
            let padding = padding.map(|padding| padding.contiguous()).transpose()?;
            self.sdpa().forward(&q, &k, &v, Mask { padding: padding.as_ref(), ..Mask::default() })?
        };
        Ok(Some(context))
    }
}

fn number(n: usize, device: &Device) -> Result<Tensor> {
    Ok(Tensor::new(&[u32::try_from(n)?], device)?)
}

/// One text or several, of few rows and of more, of heads that are split and that are not, with padding or without.
fn layers() -> impl Iterator<Item = (usize, usize, usize, DType, bool)> {
    DTYPES.into_iter().flat_map(|dtype| {
        [(1, 2, 64, dtype, false), (3, 1, 32, dtype, true), (9, 2, 80, dtype, true), (1, 1, 128, dtype, true)]
    })
}

/// At any length: the bits of a step for that length, in the cache and in the context, whatever lies behind.
#[test]
fn a_cache_whose_length_the_gpu_reads_has_the_bits_of_any_other() -> Result {
    let _alone = alone();
    for (b, h, d, dtype, padded) in layers() {
        let layer = Layer::new(b, h, d, dtype, padded)?;
        for past in [30, 63, 64, 127, 128, 200, 319] {
            let case = format!("{b} texts, {h} heads {d} wide, {dtype:?}, padding {padded}, behind {past}");
            let x = layer.x(past)?;
            let mut plain = layer.cache(past)?;
            let Some(expected) = layer.step(&mut plain, &x)? else {
                assert!(layer.device.is_cpu(), "{case}: no kernel");
                return Ok(());
            };
            let mut growing = layer.cache(past)?;
            growing.follow(&number(past, &layer.device)?);
            let got = layer.step(&mut growing, &x)?.ok_or("no kernel")?;
            growing.settle(past + 1);
            assert!(equal(&got, &expected)?, "{case}: another context");
            assert!(equal(&growing.rows()?, &plain.rows()?)?, "{case}: other rows");
        }
    }
    Ok(())
}

/// A step that is recorded once and launched at one length after another.
#[test]
fn a_step_as_a_graph_has_the_bits_of_the_step() -> Result {
    let _alone = alone();
    for (b, h, d, dtype, padded) in layers() {
        let layer = Layer::new(b, h, d, dtype, padded)?;
        let first = 61;
        let mut plain = layer.cache(first)?;
        let mut growing = layer.cache(first)?;
        let x = layer.x(0)?;
        let Some(found) = layer.step(&mut layer.cache(first)?, &x)? else {
            assert!(layer.device.is_cpu());
            return Ok(());
        };
        let place = found.zeros_like()?;
        let past = number(first, &layer.device)?;
        growing.follow(&past);
        // Once by itself, for all that a larger cache needs.
        layer.step(&mut growing, &x)?;
        let graph = CudaGraph::record(&layer.device, vec![place.clone(), past.clone()], || {
            growing.follow(&past);
            let Some(context) = layer.step(&mut growing, &x)? else { candle_core::bail!("no kernel") };
            place.slice_set(&context, 0, 0)
        });
        let graph = graph?;
        for held in first..first + 70 {
            if b == 1 && held == first + 30 {
                // A step with more heads takes larger counters for the stream; the graph keeps its own.
                let larger = layer.of_texts(20);
                larger.step(&mut larger.cache(first + 80)?, &larger.x(1)?)?;
            }
            let expected = layer.step(&mut plain, &x)?.ok_or("no kernel")?;
            CudaGraph::overwrite(&past, &[u32::try_from(held)?])?;
            graph.launch()?;
            assert!(equal(&place, &expected)?, "{b} texts, {dtype:?}, behind {held}");
        }
        growing.settle(first + 70);
        assert!(equal(&growing.rows()?, &plain.rows()?)?, "{b} texts, {dtype:?}: other rows");
    }
    Ok(())
}

#[test]
fn numbers_are_written_over_a_part_of_a_tensor() -> Result {
    let _alone = alone();
    let device = device()?;
    let all = Tensor::zeros(4, DType::U32, &device)?;
    let part = all.narrow(0, 1, 2)?;
    let written = CudaGraph::overwrite(&part, &[7, 8]);
    if device.is_cpu() {
        refused(written, "CUDA");
    } else {
        written?;
        assert_eq!(all.to_vec1::<u32>()?, [0, 7, 8, 0]);
    }
    Ok(())
}

/// A number beyond the cache reads and writes nothing outside of it.
#[test]
fn a_length_beyond_the_cache_harms_nothing() -> Result {
    let _alone = alone();
    let layer = Layer::new(2, 1, 64, DType::F32, false)?;
    for beyond in [CAPACITY, 100_000, 3_000_000_000] {
        let mut cache = layer.cache(CAPACITY - 1)?;
        let before = cache.rows()?.copy()?;
        cache.follow(&number(beyond, &layer.device)?);
        let found = layer.step(&mut cache, &layer.x(1)?)?;
        assert!(layer.device.is_cpu() || found.is_some());
        cache.settle(CAPACITY - 1);
        assert!(equal(&cache.rows()?, &before)?, "behind {beyond}");
    }
    Ok(())
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: candle_core::Result<T>, cause: &str) {
    let error = result.expect_err("refused").to_string();
    assert!(error.contains(cause), "{error}");
}

/// Work that cannot be recorded or repeated is refused by name, and the device goes on.
#[test]
fn what_cannot_be_repeated_is_refused() -> Result {
    let _alone = alone();
    let layer = Layer::new(1, 2, 64, DType::F32, false)?;
    let device = layer.device.clone();
    let x = Tensor::ones(4, DType::U32, &device)?;
    let nothing = || CudaGraph::record(&device, vec![], || Ok(()));
    refused(CudaGraph::overwrite(&x, &[1; 5]), "5 numbers do not fit");
    let ones = |t: usize| Tensor::ones((1, 2, t, 64), DType::F32, &device);
    let q = ones(1)?;
    let k = ones(8)?;
    let past = number(3, &device)?;
    let eager = Sdpa { implementation: Implementation::Eager, ..layer.sdpa() };
    refused(eager.forward_at(&q, &k, &k, None, &past), "no kernel reads");
    refused(layer.sdpa().forward_at(&k, &k, &k, None, &past), "no kernel reads");
    refused(layer.sdpa().forward_at(&q, &k, &k, None, &x), "must be u32 [1]");
    let mut cache = layer.cache(5)?;
    cache.follow(&past);
    let rows = Tensor::ones((1, 4, 1, 64), DType::F32, &device)?;
    refused(cache.append(&rows), "the GPU alone knows");
    if device.is_cpu() {
        refused(nothing(), "needs a device of CUDA");
        return Ok(());
    }
    for round in 0..2 {
        let upload = || Tensor::new(&[1u32, 2], &device).map(drop);
        refused(CudaGraph::record(&device, vec![], upload), "STREAM_CAPTURE");
        refused(CudaGraph::record(&device, vec![], || x.to_vec1::<u32>().map(drop)), "STREAM_CAPTURE");
        refused(CudaGraph::record(&device, vec![], || candle_core::bail!("its own error")), "its own error");
        let mut from_before = Some(x.copy()?);
        let frees = || {
            from_before.take();
            Ok(())
        };
        let freed = CudaGraph::record(&device, vec![], frees);
        // The driver that runs on the processor refuses this; that of an H200 (580) recorded it.
        if std::env::var_os("CUDA_ON_CPU").is_some() {
            refused(freed, "cannot record");
        }
        assert_eq!((&x + &x)?.to_vec1::<u32>()?, [2; 4], "round {round}");
    }
    nothing()?.launch()?;
    Ok(())
}

/// A panic in the work ends the recording, and the device goes on.
#[test]
fn a_panic_ends_a_recording() -> Result {
    let _alone = alone();
    let device = device()?;
    if device.is_cpu() {
        return Ok(());
    }
    let x = Tensor::ones(4, DType::F32, &device)?;
    let y = x.zeros_like()?;
    x.affine(2.0, 0.0)?; // its kernel is loaded
    let panics =
        || CudaGraph::record(&device, vec![], || -> candle_core::Result<()> { panic!("on purpose") });
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
    assert_eq!(x.affine(3.0, 0.0)?.to_vec1::<f32>()?, [3.0; 4]);
    let work = || y.slice_set(&x.affine(2.0, 0.0)?, 0, 0);
    CudaGraph::record(&device, vec![x.clone(), y.clone()], work)?.launch()?;
    assert_eq!(y.to_vec1::<f32>()?, [2.0; 4]);
    Ok(())
}
