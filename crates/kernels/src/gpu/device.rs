//! A CUDA device: its kernels, what its streams share, the host threads that may use it, and its memory.

#![allow(unsafe_code)] // launching a kernel and the driver's own calls are unsafe

use super::launch_plan::{GpuLimits, Launch, code_for};
use candle_core::cuda_backend::cudarc::driver::sys::{self, CUdevice_attribute, CUfunction_attribute};
use candle_core::cuda_backend::cudarc::driver::{
    CudaFunction, CudaModule, CudaSlice, CudaStream, CudaView, LaunchArgs, LaunchConfig, result,
};
use candle_core::cuda_backend::cudarc::nvrtc::Ptx;
use candle_core::cuda_backend::{CudaDType, CudaDevice, CudaStorage, DeviceId, WrapErr};
use candle_core::{Device, Layout, Result, Storage, Tensor};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread::{ThreadId, current};

macro_rules! binary {
    ($source:literal) => {
        include_bytes!(concat!(env!("OUT_DIR"), "/", $source, ".fatbin"))
    };
}

/// The binaries (machine code and PTX) that build.rs compiled from `cuda/*.cu`, each with the
/// prefixes of its kernels' names.
const BINARIES: [(&[&str], &[u8]); 10] = [
    (&["attention_f32", "attention_masked_f32"], binary!("attention_f32")),
    (&["attention_"], binary!("attention")),
    (&["gradient_of_queries_f32", "gradient_of_keys_f32"], binary!("attention_backward_f32")),
    (&["gradient_"], binary!("attention_backward")),
    (&["delta_"], binary!("delta")),
    (&["decode_"], binary!("decode")),
    (&["cross_entropy_"], binary!("cross_entropy")),
    (&["product_"], binary!("few_rows")),
    (&["candidates_"], binary!("candidates")),
    (&["embed_", "layer_norm_", "finish_"], binary!("layers")),
];

/// The loaded modules and kernels, by device context.
#[derive(Default)]
struct LoadedKernels {
    modules: HashMap<(usize, usize), Arc<CudaModule>>,
    functions: HashMap<(usize, String), CudaFunction>,
}

/// The kernel, loaded once for each device.
pub(crate) fn function(stream: &Arc<CudaStream>, launch: &Launch) -> Result<CudaFunction> {
    static LOADED: LazyLock<Mutex<LoadedKernels>> = LazyLock::new(Mutex::default);
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

/// The limits of a device, which this thread may use. The driver is asked once.
pub(crate) fn gpu_limits(device: &CudaDevice) -> Result<GpuLimits> {
    static KNOWN: LazyLock<Mutex<HashMap<usize, GpuLimits>>> = LazyLock::new(Mutex::default);
    check_thread(device)?;
    let stream = device.cuda_stream();
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let context = stream.context().cu_ctx() as usize;
    if let Some(limits) = known.get(&context) {
        return Ok(*limits);
    }
    let limits = limits_of(&stream)?;
    known.insert(context, limits);
    Ok(limits)
}

fn limits_of(stream: &CudaStream) -> Result<GpuLimits> {
    use CUdevice_attribute as Of;
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

/// A contiguous tensor, aligned to `bytes` bytes.
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

/// A stream: its context and handle, and the thread if it is another one in each, under the same handle.
type StreamKey = (usize, usize, Option<ThreadId>);

/// One `T` for each stream, made when it is needed and kept.
#[derive(Debug)]
pub(super) struct PerStream<T>(Mutex<HashMap<StreamKey, Arc<T>>>);

impl<T> Default for PerStream<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> PerStream<T> {
    /// That of the device's stream, if it is `enough`; otherwise a new one takes its place.
    pub(super) fn get(
        &self,
        device: &CudaDevice,
        enough: impl Fn(&T) -> bool,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        let stream = device.cuda_stream();
        let key =
            (stream.context().cu_ctx() as usize, stream.cu_stream() as usize, own_stream_of_thread(&stream));
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = all.get(&key).filter(|found| enough(found)) {
            return Ok(found.clone());
        }
        let made = Arc::new(make()?);
        all.insert(key, made.clone());
        Ok(made)
    }
}

/// At least `count` counters of the device's stream, with which the blocks of a launch tell each other how many are done. They
/// are 0, and every launch leaves them at 0, so launches of one
/// stream share them.
pub(crate) fn counters(device: &CudaDevice, count: usize) -> Result<Arc<CudaSlice<u32>>> {
    static COUNTERS: LazyLock<PerStream<CudaSlice<u32>>> = LazyLock::new(PerStream::default);
    COUNTERS.get(
        device,
        |counters| counters.len() >= count,
        || device.alloc_zeros::<u32>(count.next_power_of_two()),
    )
}

/// The handle of the stream that is another one in each thread (`CU_STREAM_PER_THREAD`).
const PER_THREAD: usize = 2;

/// This thread, if the stream is another one in each thread.
fn own_stream_of_thread(stream: &CudaStream) -> Option<ThreadId> {
    (stream.cu_stream() as usize == PER_THREAD).then(|| current().id())
}

/// Fails if a second thread uses a device whose stream is another one in each thread, as `Device::new_cuda` makes it:
/// nothing would order what the two do with a shared tensor.
pub(crate) fn check_thread(device: &CudaDevice) -> Result<()> {
    static FIRST: LazyLock<Mutex<HashMap<DeviceId, ThreadId>>> = LazyLock::new(Mutex::default);
    let stream = device.cuda_stream();
    // Events would order the two, but Candle's device does not manage them with its one stream.
    if own_stream_of_thread(&stream).is_none() || stream.context().is_managing_stream_synchronization() {
        return Ok(());
    }
    let mut first = FIRST.lock().unwrap_or_else(PoisonError::into_inner);
    if *first.entry(device.id()).or_insert_with(|| current().id()) == current().id() {
        return Ok(());
    }
    candle_core::bail!(
        "a second host thread uses a CUDA device made with Device::new_cuda, whose stream is another one in each \
         thread: make the device with Device::new_cuda_with_stream, use it in one thread, or choose eager code"
    )
}

/// Keeps freed memory with the process. By default, the pool that Candle allocates from releases all of it at every
/// synchronization, and maps it again for the next tensor.
pub(crate) fn keep_freed_memory(device: &CudaDevice) -> Result<()> {
    let stream = device.cuda_stream();
    if !stream.context().has_async_alloc() {
        return Ok(()); // no pool: the driver allocates and frees each tensor separately
    }
    let mut threshold = u64::MAX;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the device is open, its default pool lives as long, and the call reads this attribute as a u64.
    unsafe {
        let pool = result::device::get_default_mem_pool(stream.context().cu_device()).w()?;
        result::mem_pool::set_attribute(pool, attribute, (&raw mut threshold).cast()).w()
    }
}

/// The device of this number, the same one in every call. It has no events, by which cudarc orders streams: two or more driver
/// calls for each tensor of each launch.
pub(crate) fn open(ordinal: usize) -> Result<Device> {
    static OPEN: LazyLock<Mutex<HashMap<usize, Device>>> = LazyLock::new(Mutex::default);
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = open.get(&ordinal) {
        return Ok(device.clone());
    }
    let device = Device::new_cuda_with_stream(ordinal)?;
    // SAFETY: the device was just opened with a stream of its own, and no other is opened here on this GPU: everything on it, of
    // all host threads, goes through this one stream, which orders it. `open_cuda` says what is left to its callers.
    unsafe { device.as_cuda_device()?.disable_event_tracking() };
    open.insert(ordinal, device.clone());
    Ok(device)
}
