//! [`Dictionary`]: a sparse autoencoder or transcoder, which writes a model's values as few of many features.
//!
//! `f = select(x·W_enc + b_enc)`, and `x̂ = f·W_dec + b_dec`, where few of f's numbers are not 0: Bricken et al. 2023, "Towards
//! Monosemanticity". How they are selected: ReLU; gated (Rajamanoharan et al. 2024, "Improving Dictionary Learning with Gated
//! Sparse Autoencoders"); a threshold for each feature (JumpReLU, Rajamanoharan et al. 2024, "Jumping Ahead"); the largest
//! k (Gao et al. 2024, "Scaling and evaluating sparse autoencoders"). A transcoder (Dunefsky et al. 2024, "Transcoders Find
//! Interpretable LLM Feature Circuits") predicts another value than it reads: an MLP's output from its input.
//!
//! Names and meanings of tensors and settings are those of [SAELens](https://github.com/decoderesearch/SAELens) 6.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use gpt2_model::dictionary::{Dictionary, DictionaryTensors, Scaling, Selection};
//!
//! # fn main() -> candle_core::Result<()> {
//! # let d = &Device::Cpu;
//! let tensors = DictionaryTensors {
//!     w_enc: Tensor::new(&[[1f32, -1., 0.], [0., 0., 1.]], d)?, // (2, 3)
//!     b_enc: Tensor::new(&[0f32, 0., -1.], d)?,
//!     w_dec: Tensor::new(&[[1f32, 0.], [-1., 0.], [0., 1.]], d)?, // (3, 2)
//!     b_dec: Tensor::new(&[0f32, 0.5], d)?,
//!     skip: None,
//! };
//! let dictionary = Dictionary::new(tensors, Selection::Relu)?;
//! let x = Tensor::new(&[[2f32, 0.], [-3., 4.]], d)?;
//! let code = dictionary.encode(&x)?;
//! assert_eq!((code.value(0, 0), code.value(1, 1), code.value(1, 2)), (2.0, 3.0, 3.0));
//! assert_eq!(dictionary.decode(&code, &x)?.to_vec2::<f32>()?, [[2.0, 0.5], [-3.0, 3.5]]);
//! # Ok(())
//! # }
//! ```

mod largest;
mod sparse_activations;
mod tensors;

pub use largest::largest;
pub use sparse_activations::ActiveFeature as Fired; // its name in the command
pub use sparse_activations::{ActiveFeature, SparseActivations};
pub use tensors::{DictionaryTensors, Scaling, Selection};

use candle_core::{D, DType, Device, Layout, Result, Storage, Tensor};
use candle_fused::{Activation, Epilogue, Weight, WeightLayout};
use rayon::prelude::*;
use sparse_activations::RowScaling;

/// Above this share of features that fire, decoding multiplies whole matrices: reading the rows of `W_dec` one by one would take
/// longer. Dictionaries that were trained are far below.
const DENSE: f64 = 1.0 / 64.0;
/// Positions to encode at a time; each batch reuses the memory of the one before it.
const ROWS: usize = 256;
/// The ε that SAELens adds to a standard deviation.
const EPSILON: f64 = 1e-5;

/// A sparse autoencoder or transcoder. It computes in f32 on the CPU.
#[derive(Debug, Clone)]
pub struct Dictionary {
    encoder: Weight,
    b_enc: Tensor,
    selection: Selection,
    /// The norms of `W_dec`'s rows, if the selection asks for them.
    norms: Option<Vec<f32>>,
    w_dec: Tensor,
    decoder: Weight,
    b_dec: Tensor,
    skip: Option<Tensor>,
    scaling: Scaling,
    subtracts_b_dec: bool,
    centers: bool,
    transcodes: bool,
}

impl Dictionary {
    /// A dictionary that encodes `x` as it is: see [`with_scaling`](Self::with_scaling) and
    /// [`subtracting_b_dec`](Self::subtracting_b_dec).
    ///
    /// # Errors
    /// When the tensors are not in f32 on the CPU, their shapes do not fit each other, or k is 0 or larger than the number of
    /// features.
    pub fn new(tensors: DictionaryTensors, selection: Selection) -> Result<Self> {
        let DictionaryTensors { w_enc, b_enc, w_dec, b_dec, skip } = tensors;
        let (d, features) = w_enc.dims2()?;
        let (of_decoder, d_out) = w_dec.dims2()?;
        if of_decoder != features {
            candle_core::bail!("Dictionary: W_enc has {features} features, W_dec {of_decoder}")
        }
        let mut wanted = vec![("W_enc", &w_enc, vec![d, features]), ("W_dec", &w_dec, vec![features, d_out])];
        wanted.extend([("b_enc", &b_enc, vec![features]), ("b_dec", &b_dec, vec![d_out])]);
        wanted.extend(skip.iter().map(|skip| ("W_skip", skip, vec![d_out, d])));
        match &selection {
            Selection::Gated { r_mag, b_mag } => {
                wanted.extend([("r_mag", r_mag, vec![features]), ("b_mag", b_mag, vec![features])]);
            }
            Selection::JumpRelu(threshold) => wanted.push(("threshold", threshold, vec![features])),
            Selection::TopK { k, .. } if *k == 0 || *k > features => {
                candle_core::bail!("Dictionary: k is {k}, expected 1 to {features}, the number of features")
            }
            Selection::Relu | Selection::TopK { .. } => {}
        }
        for (name, tensor, shape) in wanted {
            if tensor.dims() != shape || tensor.dtype() != DType::F32 || !tensor.device().is_cpu() {
                candle_core::bail!(
                    "Dictionary: {name} is {:?} {:?}, expected {shape:?} in f32 on the CPU",
                    tensor.dtype(),
                    tensor.dims()
                )
            }
        }
        let w_dec = w_dec.contiguous()?;
        let norms = match &selection {
            Selection::TopK { by_norm: true, .. } => {
                let norms: Vec<f32> = w_dec.sqr()?.sum(1)?.sqrt()?.to_vec1()?;
                if let Some(feature) = norms.iter().position(|norm| *norm == 0.0) {
                    candle_core::bail!(
                        "Dictionary: W_dec's row {feature} is 0, but activations are divided by its norm"
                    )
                }
                Some(norms)
            }
            _ => None,
        };
        Ok(Self {
            encoder: Weight::pack(&w_enc, WeightLayout::InOut)?,
            b_enc,
            selection,
            norms,
            decoder: Weight::plain(w_dec.clone(), WeightLayout::InOut)?,
            w_dec,
            b_dec,
            transcodes: skip.is_some(),
            skip,
            scaling: Scaling::None,
            subtracts_b_dec: false,
            centers: false,
        })
    }

    /// Sets the normalization of the input. The reconstruction gets the scale back; a transcoder's prediction does not.
    #[must_use]
    pub fn with_scaling(self, scaling: Scaling) -> Self {
        Self { scaling, ..self }
    }

    /// Makes the dictionary subtract `b_dec` from its input before it encodes it (`apply_b_dec_to_input`).
    ///
    /// # Errors
    /// When `b_dec` is not as wide as the input.
    pub fn subtracting_b_dec(self) -> Result<Self> {
        if self.d_out() != self.d() {
            candle_core::bail!(
                "Dictionary: b_dec has {} numbers, but the input that it is to be subtracted from has {}",
                self.d_out(),
                self.d()
            )
        }
        Ok(Self { subtracts_b_dec: true, ..self })
    }

    /// Adapts the dictionary to a model whose stream has mean 0 at each position (TransformerLens'
    /// `center_writing_weights`): it subtracts each position's mean before encoding, and adds it to the reconstruction.
    /// The model's layer norms ignore this mean.
    #[must_use]
    pub fn centering(self) -> Self {
        Self { centers: true, ..self }
    }

    /// Makes the dictionary a transcoder, which predicts another value than it reads.
    #[must_use]
    pub fn transcoding(self) -> Self {
        Self { transcodes: true, ..self }
    }

    /// Whether it predicts another value than it reads.
    #[must_use]
    pub fn is_transcoder(&self) -> bool {
        self.transcodes
    }

    /// The width of what it reads.
    #[must_use]
    pub fn d(&self) -> usize {
        self.encoder.shape().0
    }

    /// The width of what it reconstructs.
    #[must_use]
    pub fn d_out(&self) -> usize {
        self.b_dec.elem_count()
    }

    /// The number of features.
    #[must_use]
    pub fn features(&self) -> usize {
        self.encoder.shape().1
    }

    /// `W_dec`, (features, d out)
    #[must_use]
    pub fn w_dec(&self) -> &Tensor {
        &self.w_dec
    }

    /// `b_dec`, (d out)
    #[must_use]
    pub fn b_dec(&self) -> &Tensor {
        &self.b_dec
    }

    /// `b_enc`, or `b_gate`, (features)
    #[must_use]
    pub fn b_enc(&self) -> &Tensor {
        &self.b_enc
    }

    /// `W_skip` of a transcoder that has it, (d out, d)
    #[must_use]
    pub fn skip(&self) -> Option<&Tensor> {
        self.skip.as_ref()
    }

    /// Columns of `W_enc`: the directions that features read.
    ///
    /// # Shapes
    /// `features` (n), integers -> (n, d)
    ///
    /// # Errors
    /// When there is no such feature.
    pub fn encoders(&self, features: &Tensor) -> Result<Tensor> {
        self.encoder.columns(features)
    }

    /// Whether a feature that fires has the activation `x·W_enc + b_enc`, of the value as it is.
    #[must_use]
    pub fn reads_linearly(&self) -> bool {
        let takes_sums =
            !matches!(self.selection, Selection::Gated { .. } | Selection::TopK { by_norm: true, .. });
        takes_sums && self.scaling == Scaling::None && !self.centers && !self.subtracts_b_dec
    }

    /// Encodes values: the features that fire at each position, with their activations.
    ///
    /// # Shapes
    /// `x` (.., d) in f32 on the CPU
    ///
    /// # Errors
    /// When `x` has another width, dtype or device.
    pub fn encode(&self, x: &Tensor) -> Result<SparseActivations> {
        let (rows, taken) = self.normalized(x)?; // (positions, d)
        let rows = if self.subtracts_b_dec { rows.broadcast_sub(&self.b_dec)? } else { rows };
        let (bias, epilogue) = match self.selection {
            // Both of its sums need the product alone.
            Selection::Gated { .. } => (None, Epilogue::None),
            Selection::Relu | Selection::JumpRelu(_) => {
                (Some(&self.b_enc), Epilogue::Activation(Activation::Relu))
            }
            Selection::TopK { .. } => (Some(&self.b_enc), Epilogue::None),
        };
        let mut fired = Vec::with_capacity(taken.len());
        for first in (0..taken.len()).step_by(ROWS) {
            let rows = rows.narrow(0, first, ROWS.min(taken.len() - first))?;
            let pre = self.encoder.forward(&rows, bias, epilogue)?; // (rows, features)
            fired.extend(self.selected(&pre)?);
        }
        Ok(SparseActivations::new(self.features(), fired, taken))
    }

    /// The reconstruction `f·W_dec + b_dec`, with what normalization took; of a transcoder, its prediction.
    ///
    /// # Shapes
    /// `x` (.., d), the values that were encoded, in the order of `code`'s rows -> (.., d out)
    ///
    /// # Errors
    /// When `code` is of another dictionary, or `x` has another number of positions.
    pub fn decode(&self, code: &SparseActivations, x: &Tensor) -> Result<Tensor> {
        let mut dims = x.dims().to_vec();
        let positions = dims.iter().rev().skip(1).product::<usize>();
        if (code.features(), code.rows()) != (self.features(), positions) {
            candle_core::bail!(
                "Dictionary::decode: a code of {} positions and {} features, expected {positions} and {}",
                code.rows(),
                code.features(),
                self.features()
            )
        }
        let mut y = self.sums(code)?.broadcast_add(&self.b_dec)?; // (positions, d out)
        if self.undoes() {
            let column = |of: fn(&RowScaling) -> f32| {
                Tensor::from_iter(code.taken.iter().map(of), &Device::Cpu)?.unsqueeze(1) // (positions, 1)
            };
            y = y
                .broadcast_mul(&column(|taken| taken.scale)?)?
                .broadcast_add(&column(|taken| taken.shift)?)?;
        }
        if let Some(skip) = &self.skip {
            y = (y + x.reshape((positions, self.d()))?.matmul(&skip.t()?)?)?;
        }
        if let Some(last) = dims.last_mut() {
            *last = self.d_out();
        }
        y.reshape(dims)
    }

    /// The code that has these activations, for decoding activations that were changed.
    ///
    /// # Shapes
    /// `activations` (.., features) in f32 on the CPU, `x` (.., d), the values that they belong to
    ///
    /// # Errors
    /// When there is not a row of activations for each position of `x`, or a dtype or device differs.
    pub fn code_of(&self, activations: &Tensor, x: &Tensor) -> Result<SparseActivations> {
        let (_, taken) = self.normalized(x)?;
        let features = self.features();
        let rows = taken.len();
        if activations.dim(D::Minus1)? != features || activations.elem_count() != rows * features {
            candle_core::bail!(
                "Dictionary::code_of: activations {:?}, expected {features} for each of {rows} positions",
                activations.dims()
            )
        }
        let activations = activations.reshape((rows, features))?.to_vec2::<f32>()?;
        let fired = |row: Vec<f32>| {
            (0..)
                .zip(row)
                .filter(|(_, x)| *x != 0.0)
                .map(|(feature, value)| ActiveFeature { feature, value })
                .collect()
        };
        Ok(SparseActivations::new(features, activations.into_iter().map(fired).collect(), taken))
    }

    /// Whether a reconstruction depends on the value beside its code: on its scale, or by a linear map.
    #[must_use]
    pub fn decodes_with_input(&self) -> bool {
        self.undoes() || self.skip.is_some()
    }

    /// The scale of a feature's contribution at a row of `code`: the feature adds activation · factor · its row of
    /// `W_dec` to the reconstruction.
    #[must_use]
    pub fn factor(&self, code: &SparseActivations, row: usize, feature: u32) -> f32 {
        let of_norm = self.norms.as_ref().map_or(1.0, |norms| 1.0 / norms[feature as usize]);
        let of_row = code.taken.get(row).filter(|_| self.undoes()).map_or(1.0, |taken| taken.scale);
        of_norm * of_row
    }

    /// A feature's contribution to the reconstruction per unit of activation, before the scale of normalization,
    /// (d out). It is the feature's row of `W_dec`, divided by the row's norm if the selection multiplies by this norm.
    ///
    /// # Errors
    /// When there is no such feature.
    pub fn direction(&self, feature: u32) -> Result<Tensor> {
        if feature as usize >= self.features() {
            candle_core::bail!("there is no feature {feature}: the dictionary has {}", self.features())
        }
        let row = self.w_dec.get(feature as usize)?;
        match &self.norms {
            Some(norms) => row / f64::from(norms[feature as usize]),
            None => Ok(row),
        }
    }

    /// Whether the output gets back what normalization took.
    fn undoes(&self) -> bool {
        !self.transcodes && (self.centers || self.scaling != Scaling::None)
    }

    /// The values to encode, normalized, (positions, d), and what that took.
    fn normalized(&self, x: &Tensor) -> Result<(Tensor, Vec<RowScaling>)> {
        let d = self.d();
        if x.dim(D::Minus1)? != d || x.dtype() != DType::F32 || !x.device().is_cpu() {
            candle_core::bail!(
                "Dictionary: expected values [.., {d}] in f32 on the CPU, got {:?} {:?}",
                x.dtype(),
                x.dims()
            )
        }
        let mut rows: Vec<f32> = x.flatten_all()?.to_vec1()?;
        let taken: Vec<RowScaling> = rows.par_chunks_mut(d).map(|row| self.normalize(row)).collect();
        Ok((Tensor::from_vec(rows, (taken.len(), d), &Device::Cpu)?, taken))
    }

    /// Normalizes a position. Sums are in f64.
    #[allow(clippy::cast_possible_truncation)] // back to f32
    fn normalize(&self, row: &mut [f32]) -> RowScaling {
        let narrow = |x: f64| x as f32;
        let n = row.len() as f64;
        let mean = || row.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
        let squares = |mean: f64| row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>();
        let taken_first = if self.centers { mean() } else { 0.0 };
        // SAELens divides by the standard deviation plus ε, and multiplies by the standard deviation.
        let (shift, divisor, scale) = match self.scaling {
            Scaling::None => (taken_first, 1.0, 1.0),
            Scaling::LayerNorm => {
                let mean = mean();
                let deviation = (squares(mean) / (n - 1.0)).sqrt();
                (mean, deviation + EPSILON, deviation)
            }
            Scaling::ConstantNorm => {
                let norm = squares(taken_first).sqrt() / n.sqrt();
                (taken_first, norm, norm)
            }
        };
        for x in row {
            *x = narrow((f64::from(*x) - shift) / divisor);
        }
        RowScaling { shift: narrow(shift), scale: narrow(scale) }
    }

    /// The features that fire at each position, by number.
    fn selected(&self, pre: &Tensor) -> Result<Vec<Vec<ActiveFeature>>> {
        let features = self.features();
        let pre = pre.contiguous()?;
        let (storage, layout) = pre.storage_and_layout();
        let rows = slice(&storage, layout)?.par_chunks(features);
        let positive = |feature: u32, value: f32| (value > 0.0).then_some(ActiveFeature { feature, value });
        Ok(match &self.selection {
            Selection::Relu => {
                rows.map(|row| (0..).zip(row).filter_map(|(i, &x)| positive(i, x)).collect()).collect()
            }
            Selection::JumpRelu(threshold) => {
                let threshold: Vec<f32> = threshold.to_vec1()?;
                let fires = |(i, (&x, &least)): (u32, (&f32, &f32))| positive(i, x).filter(|_| x > least);
                rows.map(|row| (0..).zip(row.iter().zip(&threshold)).filter_map(fires).collect()).collect()
            }
            Selection::Gated { r_mag, b_mag } => {
                let gate: Vec<f32> = self.b_enc.to_vec1()?;
                let (scale, b_mag): (Vec<f32>, Vec<f32>) = (r_mag.exp()?.to_vec1()?, b_mag.to_vec1()?);
                let of_row = |row: &[f32]| {
                    let parts = row.iter().zip(&gate).zip(scale.iter().zip(&b_mag));
                    let fires = (0..).zip(parts).filter_map(|(i, ((x, gate), (scale, b_mag)))| {
                        positive(i, x * scale + b_mag).filter(|_| x + gate > 0.0)
                    });
                    fires.collect()
                };
                rows.map(of_row).collect()
            }
            &Selection::TopK { k, absolute, .. } => {
                rows.map(|row| largest(row, self.norms.as_deref(), k, absolute)).collect()
            }
        })
    }

    /// `f·W_dec`, (positions, d out)
    fn sums(&self, code: &SparseActivations) -> Result<Tensor> {
        let rows = code.rows();
        let d = self.d_out();
        if code.count_fired() as f64 > DENSE * (rows * self.features()) as f64 {
            let mut dense = code.dense()?;
            if let Some(norms) = &self.norms {
                dense = dense.broadcast_div(&Tensor::from_slice(norms, norms.len(), &Device::Cpu)?)?;
            }
            return self.decoder.forward(&dense, None, Epilogue::None);
        }
        let (storage, layout) = self.w_dec.storage_and_layout();
        let w_dec = slice(&storage, layout)?;
        let mut sums = vec![0f32; rows * d];
        sums.par_chunks_mut(d).enumerate().for_each(|(row, sum)| {
            for &ActiveFeature { feature, value } in code.row(row) {
                let value = self.norms.as_ref().map_or(value, |norms| value / norms[feature as usize]);
                let direction = &w_dec[feature as usize * d..][..d];
                for (sum, x) in sum.iter_mut().zip(direction) {
                    *sum += value * x;
                }
            }
        });
        Tensor::from_vec(sums, (rows, d), &Device::Cpu)
    }
}

/// The numbers of a contiguous tensor in f32 on the CPU.
fn slice<'a>(storage: &'a Storage, layout: &Layout) -> Result<&'a [f32]> {
    match (storage, layout.contiguous_offsets()) {
        (Storage::Cpu(storage), Some((start, end))) => Ok(&storage.as_slice::<f32>()?[start..end]),
        _ => candle_core::bail!("Dictionary: expected a contiguous tensor on the CPU, got {layout:?}"),
    }
}
