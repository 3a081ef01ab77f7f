//! The device of the tests that have a meaning on each.

use crate::common::Result;
use candle_core::Device;

/// The CPU, or what `GPT2_TEST_DEVICE` names (`cuda`).
pub(crate) fn device() -> Result<Device> {
    match std::env::var("GPT2_TEST_DEVICE").as_deref() {
        Err(_) | Ok("" | "cpu") => Ok(Device::Cpu),
        Ok("cuda") => Ok(candle_fused::open_cuda(0)?),
        Ok(other) => Err(format!("GPT2_TEST_DEVICE={other}: expected cpu or cuda").into()),
    }
}
