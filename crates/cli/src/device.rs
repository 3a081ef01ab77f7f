//! Opens `--device`: an explicit choice never falls back, and `auto` says what it chose.

use crate::args::DeviceArg;
use crate::output::note;
use anyhow::{Context, bail};
use candle_core::Device;
use candle_core::utils::{cuda_is_available, metal_is_available};

impl DeviceArg {
    /// Opens the device.
    pub(crate) fn open(self) -> anyhow::Result<Device> {
        match self {
            Self::Cpu => Ok(Device::Cpu),
            Self::Cuda(_) if !cuda_is_available() => bail!(
                "--device cuda: this gpt2 was built without CUDA; build it with \
                 `cargo build --release --features cuda` on a machine with the CUDA toolkit"
            ),
            Self::Cuda(n) => {
                let none = || {
                    format!(
                        "--device cuda:{n}: this GPU does not respond; `nvidia-smi` shows which GPUs there are"
                    )
                };
                let device = Device::new_cuda(n).with_context(none)?;
                gpt2_kernels::keep_freed_memory(&device).with_context(|| {
                    format!("--device cuda:{n}: the driver's memory pool does not respond")
                })?;
                Ok(device)
            }
            Self::Metal(_) if !metal_is_available() => bail!(
                "--device metal: this gpt2 was built without Metal; build it with \
                 `cargo build --release --features metal` on macOS"
            ),
            Self::Metal(n) => {
                Device::new_metal(n).with_context(|| format!("--device metal:{n}: this GPU does not respond"))
            }
            Self::Auto => Ok(Self::first_that_answers()),
        }
    }

    fn first_that_answers() -> Device {
        let built_in = [
            (cuda_is_available(), Self::Cuda(0), "cuda:0"),
            (metal_is_available(), Self::Metal(0), "metal:0"),
        ];
        for (_, arg, name) in built_in.into_iter().filter(|(is_built_in, ..)| *is_built_in) {
            match arg.open() {
                Ok(device) => {
                    note(&format!("device: {name}"));
                    return device;
                }
                Err(error) => note(&format!("{error:#}; trying the next device")),
            }
        }
        note("device: cpu");
        Device::Cpu
    }
}
