//! Hooks that read and change gradients on their way back through a pass.

use crate::hooks::{At, Hooks, Point};
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CudaStorage, CustomOp1, Layout, MetalStorage, Result, Shape, Tensor, Var};
use std::fmt::{self, Debug};
use std::sync::Arc;

/// Reads the gradient at a point, and gives another in its place.
pub type GradientFunction = Arc<dyn Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync>;

/// Calls functions with the gradients at points, on the way back from a number that the pass led to. Functions at the same point are
/// called in order. They come after hooks that change the value.
#[derive(Clone)]
pub struct BackwardHooks {
    functions: Vec<(Point, GradientFunction)>,
}

impl BackwardHooks {
    /// Functions at points.
    #[must_use]
    pub fn new(functions: Vec<(Point, GradientFunction)>) -> Self {
        Self { functions }
    }
}

impl Debug for BackwardHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.functions.iter().map(|(point, _)| point)).finish()
    }
}

impl Hooks for BackwardHooks {
    fn wants(&self, point: Point) -> bool {
        self.functions.iter().any(|(at, _)| *at == point)
    }

    fn at(&self, at: At, value: &Tensor) -> Result<Option<Tensor>> {
        let functions = self.functions.iter().filter(|(point, _)| *point == at.point);
        let functions = functions.map(|(_, function)| Arc::clone(function)).collect();
        // Without a variable below it, no gradient would reach the point.
        let zeros = Var::from_tensor(&value.zeros_like()?.detach())?;
        let tapped = (value + zeros.as_tensor())?.contiguous()?;
        Ok(Some(tapped.apply_op1(WatchedGradient { functions })?))
    }
}

fn copied<S: BackendStorage>(storage: &S, layout: &Layout) -> Result<(S, Shape)> {
    if !layout.is_contiguous() || layout.start_offset() != 0 {
        candle_core::bail!("a watched value must be contiguous, got {layout:?}")
    }
    Ok((storage.try_clone(layout)?, layout.shape().clone()))
}

/// A value as it is, whose gradient passes through functions.
struct WatchedGradient {
    functions: Vec<GradientFunction>,
}

impl CustomOp1 for WatchedGradient {
    fn name(&self) -> &'static str {
        "watched"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        copied(storage, layout)
    }

    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        copied(storage, layout)
    }

    fn metal_fwd(&self, storage: &MetalStorage, layout: &Layout) -> Result<(MetalStorage, Shape)> {
        copied(storage, layout)
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let mut found = gradient.clone();
        for function in &self.functions {
            if let Some(other) = function(&found)? {
                if other.dims() != found.dims() {
                    candle_core::bail!(
                        "a gradient {:?}: expected {:?}, the shape of the value",
                        other.dims(),
                        found.dims()
                    )
                }
                found = other.to_device(found.device())?.to_dtype(found.dtype())?;
            }
        }
        Ok(Some(found))
    }
}
