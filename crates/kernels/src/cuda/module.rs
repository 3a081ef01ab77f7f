//! Loading and launching kernels.

#![allow(unsafe_code)] // launching a kernel is unsafe

use super::gpu_limits::{GpuLimits, code_for};
use super::launch::Launch;
use super::threads::check_thread;
use candle_core::cuda_backend::cudarc::driver::sys::{CUdevice_attribute, CUfunction_attribute};
use candle_core::cuda_backend::cudarc::driver::{
    CudaFunction, CudaModule, CudaStream, CudaView, LaunchArgs, LaunchConfig,
};
use candle_core::cuda_backend::cudarc::nvrtc::Ptx;
use candle_core::cuda_backend::{CudaDType, CudaDevice, CudaStorage, WrapErr};
use candle_core::{Layout, Result, Storage, Tensor};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

macro_rules! binary {
    ($source:literal) => {
        include_bytes!(concat!(env!("OUT_DIR"), "/", $source, ".fatbin"))
    };
}

/// The binaries (machine code and PTX) that build.rs compiled from `cuda/*.cu`, each with the
/// prefixes of its kernels' names.
const BINARIES: [(&[&str], &[u8]); 8] = [
    (&["attention_f32", "attention_masked_f32"], binary!("attention_f32")),
    (&["attention_"], binary!("attention")),
    (&["gradient_of_queries_f32", "gradient_of_keys_f32"], binary!("attention_backward_f32")),
    (&["gradient_"], binary!("attention_backward")),
    (&["delta_"], binary!("delta")),
    (&["decode_"], binary!("decode")),
    (&["cross_entropy_"], binary!("cross_entropy")),
    (&["layer_norm_", "finish_"], binary!("layers")),
];

/// The loaded modules and kernels, by device context.
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
        let module = stream.context().load_module(Ptx::from_binary(BINARIES[binary].1.to_vec()));
        let module = module.map_err(|error| {
            candle_core::Error::msg(format!(
                "{} cannot be loaded on this GPU ({error:?}): set GPT2_CUDA_CAPABILITIES to its \
                 compute capability and rebuild, or choose the eager implementation",
                launch.kernel
            ))
        })?;
        loaded.modules.insert((device, binary), module.clone());
        module
    };
    let function = module.load_function(&launch.kernel).w()?;
    // A kernel must request more than 48 KiB explicitly. All launches of a kernel use the same amount.
    let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    function.set_attribute(attribute, launch.shared.try_into().unwrap_or(i32::MAX)).w()?;
    loaded.functions.insert(key, function.clone());
    Ok(function)
}

/// The limits of a device, which this thread may use.
pub(crate) fn gpu_limits(device: &CudaDevice) -> Result<GpuLimits> {
    use CUdevice_attribute as Of;
    check_thread(device)?;
    let stream = device.cuda_stream();
    let attribute =
        |which| Ok::<_, candle_core::Error>(stream.context().attribute(which).w()?.try_into().unwrap_or(0));
    let major = attribute(Of::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let own = 10 * major + attribute(Of::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    // In the order of build.rs: ascending.
    let compiled: Vec<u32> =
        env!("GPT2_COMPILED_CAPABILITIES").split(' ').filter_map(|one| one.parse().ok()).collect();
    Ok(GpuLimits {
        multiprocessors: attribute(Of::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared: attribute(Of::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        l2: attribute(Of::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
        capability: code_for(u32::try_from(own).unwrap_or(0), &compiled),
    })
}

/// The bytes that our kernels load at once.
pub(crate) const UNIT: usize = 16;

/// A contiguous tensor, aligned to so many bytes.
pub(crate) fn aligned(x: &Tensor, bytes: usize) -> Result<Tensor> {
    let offset = x.layout().start_offset() * x.dtype().size_in_bytes();
    if offset.is_multiple_of(bytes) { x.contiguous() } else { x.force_contiguous() }
}

/// The elements of a tensor, from the start of its layout.
pub(crate) fn view<'a, E: CudaDType>(
    (storage, layout): (&'a CudaStorage, &Layout),
) -> Result<CudaView<'a, E>> {
    Ok(storage.as_cuda_slice::<E>()?.slice(layout.start_offset()..))
}

/// [`view`] for a tensor's own storage.
pub(crate) fn view_of<'a, E: CudaDType>(storage: &'a Storage, layout: &Layout) -> Result<CudaView<'a, E>> {
    match storage {
        Storage::Cuda(storage) => view((storage, layout)),
        _ => candle_core::bail!("the tensors are not all on the CUDA device"),
    }
}

/// Launches the kernel on the stream of `args`.
///
/// # Safety
/// The arguments are those that the kernel takes, and everything that it reads and writes under `launch` lies inside
/// them.
pub(crate) unsafe fn launch(mut args: LaunchArgs, launch: &Launch) -> Result<()> {
    let config = LaunchConfig {
        grid_dim: (launch.blocks, 1, 1),
        block_dim: (launch.threads, 1, 1),
        shared_mem_bytes: launch.shared,
    };
    // SAFETY: the caller upholds this function's own contract.
    unsafe { args.launch(config) }.w()?;
    Ok(())
}
