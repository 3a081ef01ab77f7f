//! A number that stands for all of a model's weights.

use crate::Gpt2LMHeadModel;
use candle_core::{DType, Device, Result};

impl Gpt2LMHeadModel {
    /// A fingerprint of the config and of the parameters' names and values (FNV-1a over their bits in f32): equal models have
    /// equal ones. It finds mistakes, not forgeries.
    ///
    /// # Errors
    /// When the device fails.
    pub fn fingerprint(&self) -> Result<u64> {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        let mut add = |part: u32| hash = (hash ^ u64::from(part)).wrapping_mul(0x0100_0000_01b3);
        format!("{:?}", self.config()).bytes().for_each(|byte| add(byte.into()));
        for (name, values) in self.named_parameters() {
            name.bytes().for_each(|byte| add(byte.into()));
            let values = values.tensor()?.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
            values.flatten_all()?.to_vec1::<f32>()?.into_iter().for_each(|value| add(value.to_bits()));
        }
        Ok(hash)
    }
}
