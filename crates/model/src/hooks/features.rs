//! Other activations for features of a dictionary.

use super::hook::At;
use super::point::Point;
use crate::dictionary::{Dictionary, SparseActivations};
use candle_core::{DType, Device, Result, Tensor};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};

/// A dictionary at the places of a model where its features are changed.
#[derive(Debug)]
pub struct FeatureSite {
    dictionary: Arc<Dictionary>,
    hook: Point,
    hook_out: Point,
    /// On each thread, the code of the value that a transcoder read last.
    read: Mutex<HashMap<ThreadId, Arc<SparseActivations>>>,
}

impl FeatureSite {
    /// A dictionary that reads `hook`, and rebuilds `hook_out`: the same value, or what a transcoder predicts, which comes later.
    #[must_use]
    pub fn new(dictionary: Arc<Dictionary>, hook: Point, hook_out: Point) -> Self {
        Self { dictionary, hook, hook_out, read: Mutex::default() }
    }

    /// The dictionary.
    #[must_use]
    pub fn dictionary(&self) -> &Dictionary {
        &self.dictionary
    }

    /// The point that the dictionary reads.
    #[must_use]
    pub fn hook(&self) -> Point {
        self.hook
    }

    /// The point that the dictionary rebuilds; changes of features act there.
    #[must_use]
    pub fn hook_out(&self) -> Point {
        self.hook_out
    }

    pub(super) fn acts_at(&self, point: Point) -> bool {
        point == self.hook || point == self.hook_out
    }

    fn with_read<T>(&self, act: impl FnOnce(&mut HashMap<ThreadId, Arc<SparseActivations>>) -> T) -> T {
        act(&mut self.read.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Another activation for a feature. The change of activation, times the feature's row of `W_dec`, is added to the
/// value that the dictionary rebuilds, so the part that the dictionary does not explain stays as it is. For a
/// transcoder, the predicted value changes. Consecutive changes of one site take activations from the same value.
/// Gradients treat the added difference as a constant.
#[derive(Debug, Clone)]
pub struct FeatureChange {
    /// The dictionary, and where it is in the model.
    pub site: Arc<FeatureSite>,
    /// The feature, counted from 0.
    pub feature: u32,
    /// The feature's new activation.
    pub to: Activity,
    /// The position, or all.
    pub position: Option<usize>,
}

/// A feature's new activation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activity {
    /// The old activation times a factor: 0 ablates the feature.
    Times(f64),
    /// This number, whether the feature fires or not.
    Set(f64),
}

impl FeatureChange {
    /// `x` (B, T, ..), with other activations for features of one site, which all read the same value; heads are one row.
    #[allow(clippy::cast_possible_truncation)] // activations are in f32
    pub(super) fn all_on(changes: &[&Self], at: At, x: &Tensor) -> Result<Tensor> {
        let Some(site) = changes.first().map(|change| &change.site) else { return Ok(x.clone()) };
        let dictionary = &*site.dictionary;
        let (b, t) = (x.dim(0)?, x.dim(1)?);
        let encoded = || {
            let rows = x.detach().to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
            dictionary.encode(&rows.reshape((b * t, ()))?).map(Arc::new)
        };
        let thread = thread::current().id();
        if at.point != site.hook_out {
            let code = encoded()?;
            site.with_read(|read| read.insert(thread, code));
            return Ok(x.clone());
        }
        let read = if site.hook == site.hook_out {
            Some(encoded()?)
        } else {
            site.with_read(|read| read.get(&thread).cloned()).filter(|code| code.rows() == b * t)
        };
        let Some(code) = read else {
            candle_core::bail!(
                "features of {} change {}, which did not follow in one pass",
                site.hook,
                site.hook_out
            )
        };
        let mut sum = Tensor::zeros((b * t, dictionary.d_out()), DType::F32, &Device::Cpu)?;
        for change in changes {
            let feature = change.feature;
            let difference = |row: usize| {
                if change.position.is_some_and(|position| position != at.past + row % t) {
                    return 0.0;
                }
                let value = f64::from(code.value(row, feature));
                let to = match change.to {
                    Activity::Times(factor) => value * factor,
                    Activity::Set(to) => to,
                };
                ((to - value) * f64::from(dictionary.factor(&code, row, feature))) as f32
            };
            let differences = Tensor::from_iter((0..b * t).map(difference), &Device::Cpu)?.unsqueeze(1)?;
            let direction = dictionary.w_dec().get(feature as usize)?; // (d out)
            sum = (sum + differences.broadcast_mul(&direction)?)?;
        }
        x + sum.reshape(x.shape())?.to_dtype(x.dtype())?.to_device(x.device())?
    }
}
