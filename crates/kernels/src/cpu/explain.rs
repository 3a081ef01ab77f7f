//! [`explain`]: which code each operation of a run took, and what keeps it from a faster one.

use super::dispatch::has_cpu_kernels;
use super::isa::Isa;
use candle_core::{Result, Tensor};
use std::cell::RefCell;
use std::fmt;

thread_local! {
    /// The operations of the run that is explained on this thread, if there is one.
    static NOTES: RefCell<Option<Vec<Explained>>> = const { RefCell::new(None) };
}

/// One operation of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explained {
    /// The kind of operation: `linear`, `attention`, `layer_norm`, `rms_norm`, `rope`, `activation`.
    pub operation: &'static str,
    /// The dtypes and shapes that the code read, such as `x f32 [1, 128, 768], W q8_0 [768, 2304], then Gelu`: W is (in, out), whichever
    /// way its checkpoint stores it, and halves that meet a quantized weight are f32 there.
    pub inputs: String,
    /// The code that ran.
    pub code: String,
    /// The reason why no faster code ran; `None` if this is the fastest there is here.
    pub slower_because: Option<String>,
}

/// The operations of a run in their order. Printed, it is a table in which equal operations share a row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Explanation(pub Vec<Explained>);

/// Runs something, and says which code each linear layer, attention, norm, rotary embedding and activation of this crate took on
/// this thread. The forward passes of a model run their operations on the thread that calls them. Candle's own operations, which a
/// model calls itself, are not listed, nor are embeddings, dropout, losses and convolutions in groups.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::attention::{Mask, Sdpa};
/// use candle_fused::explain;
///
/// # fn main() -> candle_core::Result<()> {
/// let q = Tensor::randn(0f64, 1., (1, 8, 5, 64), &Device::Cpu)?;
/// let (context, explanation) = explain(|| Sdpa::default().forward(&q, &q, &q, Mask::default()))?;
/// assert_eq!(context.dims(), [1, 5, 8, 64]);
/// let [attention] = &explanation.0[..] else { panic!("one operation") };
/// assert_eq!(attention.code, "plain operations");
/// assert!(attention.slower_because.as_ref().is_some_and(|why| why.contains("f64")));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// When `run` fails.
pub fn explain<T>(run: impl FnOnce() -> Result<T>) -> Result<(T, Explanation)> {
    /// Puts the notes of a run around this one back, even if this one panics.
    struct Outer(Option<Vec<Explained>>);
    impl Drop for Outer {
        fn drop(&mut self) {
            NOTES.set(self.0.take());
        }
    }
    let mut outer = Outer(NOTES.replace(Some(vec![])));
    let result = run();
    let notes = NOTES.take().unwrap_or_default();
    if let Some(outer) = &mut outer.0 {
        outer.extend(notes.iter().cloned());
    }
    Ok((result?, Explanation(notes)))
}

/// Notes an operation, if somebody asked.
pub(crate) fn note(operation: impl FnOnce() -> Explained) {
    NOTES.with_borrow_mut(|notes| {
        if let Some(notes) = notes {
            notes.push(operation());
        }
    });
}

/// `name f32 [2, 3]`
pub(crate) fn shown(name: &str, x: &Tensor) -> String {
    format!("{name} {} {:?}", x.dtype().as_str(), x.dims())
}

/// Our code on this processor.
pub(crate) fn ours(what: impl fmt::Display) -> String {
    format!("{what}, {}", Isa::current().as_str())
}

/// Why no kernel of the CPU computes these tensors, which need one dtype; `None` if one does.
pub(crate) fn no_kernel(tensors: &[&Tensor]) -> Option<String> {
    let first = tensors.first()?;
    if let Some(other) = tensors.iter().find(|x| !x.device().is_cpu()) {
        return Some(format!("no kernel of ours computes this on {:?}", other.device().location()));
    }
    if let Some(other) = tensors.iter().find(|x| x.dtype() != first.dtype()) {
        return Some(format!("{} and {} do not go together", first.dtype().as_str(), other.dtype().as_str()));
    }
    (!has_cpu_kernels(first.dtype())).then(|| format!("there is no kernel for {}", first.dtype().as_str()))
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mut rows: Vec<(usize, &Explained)> = vec![];
        for one in &self.0 {
            match rows.iter_mut().find(|(_, row)| *row == one) {
                Some((count, _)) => *count += 1,
                None => rows.push((1, one)),
            }
        }
        let width = |column: fn(&Explained) -> &str| {
            rows.iter().map(|(_, row)| column(row).chars().count()).max().unwrap_or(0)
        };
        let [operation, inputs, code] =
            [width(|row| row.operation), width(|row| &row.inputs), width(|row| &row.code)];
        for (count, row) in &rows {
            let Explained { operation: what, inputs: of, code: by, slower_because } = row;
            let why = slower_because.as_ref().map_or(String::new(), |why| format!("  because {why}"));
            writeln!(
                f,
                "{}",
                format!("{count:>5}x {what:operation$}  {of:inputs$}  {by:code$}{why}").trim_end()
            )?;
        }
        Ok(())
    }
}
