//! Work of a GPU that is recorded once, and launched again as a whole: a CUDA graph.

use candle_core::{Device, Result, Tensor};

/// Work on a CUDA device, recorded once. A launch runs all of it again, on the same addresses: one call of the driver in place of one
/// for each kernel. What differs from launch to launch has to lie in the GPU's memory, see [`overwrite`](Self::overwrite). In builds with
/// CUDA it is `Send` and not `Sync`.
#[derive(Debug)]
pub struct CudaGraph {
    #[cfg(feature = "cuda")]
    recorded: cuda::Recorded,
    #[cfg(not(feature = "cuda"))]
    recorded: std::convert::Infallible,
}

impl CudaGraph {
    /// Records what `work` launches, without running it. Run it once before, so that its kernels are loaded.
    ///
    /// `work` allocates and frees as it likes, but what it makes is not there outside of the graph: write results into a tensor that was
    /// there before. A tensor from before must not be freed by it, which no driver has to refuse. It can neither copy from or to the CPU nor wait. Whatever it reads and
    /// writes has to live as long as the graph, which keeps `kept` alive; a launch after that reads and writes memory of others on the GPU.
    ///
    /// Rust cannot check this, any more than `cudarc` can; the memory of the host is not at risk.
    ///
    /// **No other host thread may use the device meanwhile:** what it launches there would be recorded, too, in place of running. Nor may
    /// one wait for the whole GPU, as opening a device does: that breaks the recording.
    ///
    /// # Errors
    /// When the device is not CUDA's or has no memory pools, when `work` fails, or does what cannot be recorded.
    pub fn record(device: &Device, kept: Vec<Tensor>, work: impl FnOnce() -> Result<()>) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if let Device::Cuda(device) = device {
            return Ok(Self { recorded: cuda::Recorded::new(device, kept, work)? });
        }
        let _ = (kept, work);
        candle_core::bail!("a CUDA graph needs a device of CUDA, got {:?}", device.location())
    }

    /// Adds the work to the stream of its device, behind all that is there.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn launch(&self) -> Result<()> {
        #[cfg(feature = "cuda")]
        return self.recorded.launch();
        #[cfg(not(feature = "cuda"))]
        match self.recorded {}
    }

    /// Writes numbers over a tensor's, in the order of its device's stream: for what a graph reads.
    ///
    /// # Shapes
    /// `to` u32, contiguous, with as many elements as there are numbers
    ///
    /// # Errors
    /// When the tensor has another size or dtype, or is not on CUDA.
    pub fn overwrite(to: &Tensor, numbers: &[u32]) -> Result<()> {
        if to.elem_count() != numbers.len() || !to.is_contiguous() {
            candle_core::bail!("{} numbers do not fit {:?}", numbers.len(), to.layout())
        }
        #[cfg(feature = "cuda")]
        return to.inplace_op1(&cuda::Overwrite(numbers));
        #[cfg(not(feature = "cuda"))]
        candle_core::bail!("numbers of a CUDA graph: this build has no CUDA")
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    #![allow(unsafe_code)] // a graph has no owner that Rust knows

    use crate::gpu::device::{check_thread, counters};
    use candle_core::backend::BackendStorage;
    use candle_core::cuda_backend::WrapErr;
    use candle_core::cuda_backend::cudarc::driver::{self, CudaSlice, CudaStream, DriverError, sys};
    use candle_core::{CpuStorage, CudaDevice, CudaStorage, InplaceOp1, Layout, Result, Tensor};
    use std::sync::Arc;

    /// A graph that can be launched, and what it needs.
    pub(super) struct Recorded {
        graph: driver::CudaGraph,
        device: CudaDevice,
        _kept: Vec<Tensor>,
        /// Of the stream, by which its blocks tell each other that they are done: others may take their place there.
        _counters: Arc<CudaSlice<u32>>,
    }

    // SAFETY: CUDA lets any thread use a graph, one at a time, and a reference stays in its thread, since this is not `Sync`.
    unsafe impl Send for Recorded {}

    impl std::fmt::Debug for Recorded {
        fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
            f.write_str("Recorded")
        }
    }

    impl Recorded {
        pub(super) fn new(
            device: &CudaDevice,
            kept: Vec<Tensor>,
            work: impl FnOnce() -> Result<()>,
        ) -> Result<Self> {
            check_thread(device)?;
            let stream = device.cuda_stream();
            let context = stream.context();
            if !context.has_async_alloc() {
                candle_core::bail!(
                    "a CUDA graph: this GPU has no memory pools, so that no graph can allocate"
                )
            }
            let mut recording = Recording::begin(&stream)?;
            let worked = work();
            // What failed where no error can be returned, as in a drop: the next call, the capture's end, would fail with it.
            let dropped = context.check_err();
            let ended = recording.end();
            worked?;
            dropped.map_err(refused)?;
            match ended {
                Ok(Some(graph)) => {
                    let counters = counters(device, 0)?;
                    Ok(Self { graph, device: device.clone(), _kept: kept, _counters: counters })
                }
                Ok(None) => candle_core::bail!("a CUDA graph: nothing was recorded"),
                Err(error) => Err(refused(error)),
            }
        }

        pub(super) fn launch(&self) -> Result<()> {
            check_thread(&self.device)?;
            self.graph.launch().w()
        }
    }

    /// A stream that records. It ends when this is dropped, also by a panic.
    struct Recording<'a> {
        stream: &'a Arc<CudaStream>,
        has_events: bool,
        has_ended: bool,
    }

    impl<'a> Recording<'a> {
        fn begin(stream: &'a Arc<CudaStream>) -> Result<Self> {
            let context = stream.context();
            let has_events = context.is_event_tracking();
            // Allocations of other threads on other streams do not disturb.
            stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).w()?;
            if has_events {
                // SAFETY: a device of Candle has one stream, which orders all that its tensors are used for. The events of tensors
                // from before are outside of the capture, which cannot wait for them.
                unsafe { context.disable_event_tracking() };
            }
            Ok(Self { stream, has_events, has_ended: false })
        }

        fn end(&mut self) -> std::result::Result<Option<driver::CudaGraph>, DriverError> {
            self.has_ended = true;
            // Without a flag, memory that nothing frees is an error of the second launch.
            let ended = self.stream.end_capture(sys::CUgraphInstantiate_flags(0));
            if self.has_events {
                // SAFETY: what the work has made is gone or in the graph.
                unsafe { self.stream.context().enable_event_tracking() };
            }
            ended
        }
    }

    impl Drop for Recording<'_> {
        fn drop(&mut self) {
            if !self.has_ended {
                let _ = self.stream.context().check_err();
                let _ = self.end();
            }
        }
    }

    fn refused(error: DriverError) -> candle_core::Error {
        candle_core::Error::msg(format!("a CUDA graph: the driver cannot record this work: {error:?}"))
    }

    /// Numbers that take the place of a tensor's.
    pub(super) struct Overwrite<'a>(pub(super) &'a [u32]);

    impl InplaceOp1 for Overwrite<'_> {
        fn name(&self) -> &'static str {
            "overwrite"
        }

        fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
            candle_core::bail!("numbers of a CUDA graph: the tensor is on the CPU")
        }

        fn cuda_fwd(&self, to: &mut CudaStorage, layout: &Layout) -> Result<()> {
            let device = to.device().clone();
            let all = to.as_cuda_slice_mut::<u32>()?;
            let start = layout.start_offset();
            device.memcpy_htod(self.0, &mut all.slice_mut(start..start + self.0.len()))
        }
    }
}
