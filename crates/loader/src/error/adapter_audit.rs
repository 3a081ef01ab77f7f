//! [`AdapterAudit`]: how an adapter's tensors differ from what its config calls for.

use super::audit::Mismatch;
use crate::stored::TensorInfo;
use std::fmt;

/// The differences between an adapter's tensors and those that its config calls for in a model.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct AdapterAudit {
    /// The adapter.
    pub name: String,
    /// The model, by the name that the adapter's config gives its base, if any.
    pub base: Option<String>,
    /// Tensors that the file lacks: PEFT's name and the shape.
    pub missing: Vec<(String, Vec<usize>)>,
    /// Tensors that the config does not call for.
    pub unexpected: Vec<TensorInfo>,
    /// Tensors of another shape, or of a dtype that is not a float.
    pub mismatched: Vec<Mismatch>,
    /// Tensors with numbers that are not finite: PEFT's name, and how many there are.
    pub not_finite: Vec<(String, usize)>,
}

impl AdapterAudit {
    /// Whether the adapter fits.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.has_the_tensors() && self.not_finite.is_empty()
    }

    /// Whether every tensor is there in its shape, whatever its numbers are.
    fn has_the_tensors(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.mismatched.is_empty()
    }
}

impl fmt::Display for AdapterAudit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_clean() {
            return write!(f, "{}: every tensor that its config calls for is there, and no other", self.name);
        }
        let found = if self.has_the_tensors() {
            "the adapter is damaged"
        } else {
            "the adapter does not fit its config and the model"
        };
        write!(f, "{}: {found}", self.name)?;
        for (name, shape) in &self.missing {
            write!(f, "\n  missing     {name} {shape:?}")?;
        }
        for t in &self.unexpected {
            write!(f, "\n  unexpected  {} {} {:?}", t.name, t.dtype, t.shape)?;
        }
        for m in &self.mismatched {
            let t = &m.found;
            write!(
                f,
                "\n  mis-shaped  {} {} {:?}, expected a float dtype and {:?}",
                t.name, t.dtype, t.shape, m.expected
            )?;
        }
        for (name, count) in &self.not_finite {
            write!(f, "\n  not finite  {name}: {count} of its numbers are NaN or infinite")?;
        }
        if self.has_the_tensors() {
            return f.write_str("\nfetch it again, or train it again with a lower learning rate");
        }
        f.write_str("\ncheck that the adapter is complete and was trained on this model")?;
        match &self.base {
            Some(base) => write!(f, "; its config names {base}"),
            None => Ok(()),
        }
    }
}
