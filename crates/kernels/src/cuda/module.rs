//! Loading and launching kernels.

#![allow(unsafe_code)] // launching is

use super::Launch;
use candle_core::Result;
use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::sys::CUfunction_attribute;
use candle_core::cuda_backend::cudarc::driver::{
    CudaFunction, CudaModule, CudaStream, LaunchArgs, LaunchConfig,
};
use candle_core::cuda_backend::cudarc::nvrtc::Ptx;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// What build.rs made of `kernels/*.cu`, machine code and PTX, and how the names of its kernels begin.
const BINARIES: [(&[&str], &[u8]); 4] = [
    (&["attention_f32"], include_bytes!(concat!(env!("OUT_DIR"), "/attention_f32.fatbin"))),
    (&["attention_"], include_bytes!(concat!(env!("OUT_DIR"), "/attention.fatbin"))),
    (&["decode_", "merge_"], include_bytes!(concat!(env!("OUT_DIR"), "/decode.fatbin"))),
    (&["layer_norm_", "finish_"], include_bytes!(concat!(env!("OUT_DIR"), "/layers.fatbin"))),
];

/// What is loaded, by the context of a device.
#[derive(Default)]
struct Loaded {
    modules: HashMap<(usize, usize), Arc<CudaModule>>,
    functions: HashMap<(usize, String), CudaFunction>,
}

/// The kernel, loaded once for each device.
pub(crate) fn function(stream: &Arc<CudaStream>, launch: &Launch) -> Result<CudaFunction> {
    static LOADED: LazyLock<Mutex<Loaded>> = LazyLock::new(Mutex::default);
    let device = stream.context().cu_ctx() as usize;
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (device, launch.kernel.clone());
    if let Some(function) = loaded.functions.get(&key) {
        return Ok(function.clone());
    }
    let begins = |starts: &[&str]| starts.iter().any(|start| launch.kernel.starts_with(start));
    let Some(binary) = BINARIES.iter().position(|(starts, _)| begins(starts)) else {
        candle_core::bail!("no kernel {}", launch.kernel)
    };
    let module = if let Some(module) = loaded.modules.get(&(device, binary)) {
        module.clone()
    } else {
        let module = stream.context().load_module(Ptx::from_binary(BINARIES[binary].1.to_vec())).w()?;
        loaded.modules.insert((device, binary), module.clone());
        module
    };
    let function = module.load_function(&launch.kernel).w()?;
    // More than 48 KiB must be asked for. All launches of a kernel ask for the same.
    let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    function.set_attribute(attribute, launch.shared.try_into().unwrap_or(i32::MAX)).w()?;
    loaded.functions.insert(key, function.clone());
    Ok(function)
}

/// Launches the kernel on the stream of `args`.
///
/// # Safety
/// The arguments are those that the kernel takes, and what it reads and writes by them and by `launch` lies inside of them.
pub(crate) unsafe fn launch(mut args: LaunchArgs, launch: &Launch) -> Result<()> {
    let config = LaunchConfig {
        grid_dim: (launch.blocks, 1, 1),
        block_dim: (launch.threads, 1, 1),
        shared_mem_bytes: launch.shared,
    };
    // SAFETY: as this function's own.
    unsafe { args.launch(config) }.w()?;
    Ok(())
}
