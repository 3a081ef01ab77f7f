//! The launches that are planned, and the tensors that have none: numbers alone, for any GPU.

use super::plan::{BackwardPlan, Plan};
use crate::gpu::launch_plan::GpuLimits;
use candle_core::{DType, Device, Result, Tensor};

/// A GPU with this number of multiprocessors, and otherwise like an H100.
fn gpu(multiprocessors: usize) -> GpuLimits {
    GpuLimits { multiprocessors, shared: 232_448, l2: 50 << 20, capability: 90 }
}

/// A T4.
const T4: GpuLimits = GpuLimits { multiprocessors: 40, shared: 64 << 10, l2: 4 << 20, capability: 75 };

#[test]
fn what_has_no_kernel_has_no_plan() -> Result<()> {
    let plan = |x: &Tensor, scale| Plan::new(x.dtype(), [x.layout(); 3], scale, [false; 2], gpu(100));
    let zeros = |dtype, d| Tensor::zeros((1, 2, 5, d), dtype, &Device::Cpu);
    let fits = zeros(DType::F16, 64)?;
    assert!(plan(&fits, 0.125).is_some());
    for (x, scale) in [
        (zeros(DType::F64, 64)?, 0.125),
        (zeros(DType::F16, 48)?, 0.125),
        (fits.clone(), -0.125),
        (fits.clone(), 0.),
        (fits.clone(), f64::NAN),
        (zeros(DType::F16, 65)?.narrow(3, 0, 64)?, 0.125), // rows of 130 bytes
        (zeros(DType::F16, 128)?.narrow(3, 4, 64)?, 0.125), // rows that start at the eighth byte
        (Tensor::zeros((1, 2, 64, 5), DType::F16, &Device::Cpu)?.transpose(2, 3)?, 0.125),
    ] {
        assert_eq!(plan(&x, scale), None, "{:?} {:?} {scale}", x.dtype(), x.layout());
    }
    Ok(())
}

#[test]
fn an_older_gpu_has_the_kernels_that_fit_it() -> Result<()> {
    let plans = |dtype, d, gpu| -> Result<[bool; 2]> {
        let x = Tensor::zeros((8, 12, 500, d), dtype, &Device::Cpu)?;
        let layouts = [x.layout(); 3];
        let forward = Plan::new(dtype, layouts, 0.1, [false; 2], gpu).is_some();
        Ok([forward, BackwardPlan::new(dtype, layouts, 0.1, gpu).is_some()])
    };
    assert_eq!(plans(DType::F16, 64, T4)?, [true, true]);
    assert_eq!(plans(DType::F16, 128, T4)?, [true, false]); // the backward pass needs more shared memory
    assert_eq!(plans(DType::BF16, 64, T4)?, [false, false]);
    assert_eq!(plans(DType::F32, 128, T4)?, [false, false]);
    assert_eq!(plans(DType::F16, 64, GpuLimits { capability: 70, ..T4 })?, [false, false]);
    assert_eq!(plans(DType::F32, 128, gpu(132))?, [true, true]);
    Ok(())
}
