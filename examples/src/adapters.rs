// Read by `ours` and by `theirs`, each with another `models`.

use super::Model;
use anyhow::{Result, bail};
use candle_core::{Device, Tensor};
use candle_nn::VarBuilder;
use serde_json::Value;

/// The model of this name, with sizes of a `config.json`.
///
/// # Errors
/// When there is no such model, or it cannot be made with these sizes.
pub fn load(name: &str, config: &Value, vb: VarBuilder<'static>) -> Result<Box<dyn Model>> {
    let config = config.clone();
    Ok(match name {
        "llama" => {
            let config = serde_json::from_value::<models::llama::LlamaConfig>(config)?.into_config(false);
            let cache = models::llama::Cache::new(true, vb.dtype(), &config, &Device::Cpu)?;
            let model = models::llama::Llama::load(vb, &config)?;
            Box::new(Llama { model, empty: cache.clone(), cache })
        }
        "qwen3" => Box::new(models::qwen3::ModelForCausalLM::new(&serde_json::from_value(config)?, vb)?),
        "mistral" => Box::new(models::mistral::Model::new(&serde_json::from_value(config)?, vb)?),
        "gemma3" => Box::new(models::gemma3::Model::new(false, &serde_json::from_value(config)?, vb)?),
        "phi" => Box::new(models::phi::Model::new(&serde_json::from_value(config)?, vb)?),
        "bert" => Box::new(models::bert::BertModel::load(vb, &serde_json::from_value(config)?)?),
        "modernbert" => Box::new(models::modernbert::ModernBert::load(vb, &serde_json::from_value(config)?)?),
        "whisper" => {
            let config: models::whisper::Config = serde_json::from_value(config)?;
            let bins = config.num_mel_bins;
            Box::new(Whisper { model: models::whisper::model::Whisper::load(&vb, config)?, bins })
        }
        other => bail!("{other}: no such model"),
    })
}

struct Llama {
    model: models::llama::Llama,
    empty: models::llama::Cache,
    cache: models::llama::Cache,
}

impl Model for Llama {
    fn read(&mut self, ids: &Tensor) -> Result<Tensor> {
        self.cache = self.empty.clone();
        Ok(self.model.forward(ids, 0, &mut self.cache)?)
    }

    fn step(&mut self, ids: &Tensor, past: usize) -> Result<Option<Tensor>> {
        Ok(Some(self.model.forward(ids, past, &mut self.cache)?))
    }
}

/// Models with a cache of their own.
macro_rules! causal {
    ($($model:ty: $($past:ident)?),+) => {
        $(impl Model for $model {
            fn read(&mut self, ids: &Tensor) -> Result<Tensor> {
                self.clear_kv_cache();
                $(let $past = 0;)?
                Ok(self.forward(ids $(, $past)?)?)
            }

            fn step(&mut self, ids: &Tensor, _past: usize) -> Result<Option<Tensor>> {
                $(let $past = _past;)?
                Ok(Some(self.forward(ids $(, $past)?)?))
            }
        })+
    };
}

causal!(
    models::qwen3::ModelForCausalLM: past,
    models::mistral::Model: past,
    models::gemma3::Model: past,
    models::phi::Model:
);

impl Model for models::bert::BertModel {
    fn read(&mut self, ids: &Tensor) -> Result<Tensor> {
        Ok(self.forward(ids, &ids.zeros_like()?, None)?)
    }

    fn step(&mut self, _: &Tensor, _: usize) -> Result<Option<Tensor>> {
        Ok(None)
    }
}

impl Model for models::modernbert::ModernBert {
    fn read(&mut self, ids: &Tensor) -> Result<Tensor> {
        Ok(self.forward(ids, &ids.ones_like()?)?)
    }

    fn step(&mut self, _: &Tensor, _: usize) -> Result<Option<Tensor>> {
        Ok(None)
    }
}

struct Whisper {
    model: models::whisper::model::Whisper,
    bins: usize,
}

impl Model for Whisper {
    /// The encoder's states of a sound that the ids stand for, and the decoder's of the ids.
    fn read(&mut self, ids: &Tensor) -> Result<Tensor> {
        let (b, t) = ids.dims2()?;
        let sound = crate::random((b, self.bins, 2 * t), 1 << 20, &Device::Cpu)?;
        let heard = self.model.encoder.forward(&sound, true)?;
        let ids = ids.narrow(1, 0, t.min(self.model.config.max_target_positions))?;
        let said = self.model.decoder.forward(&ids, &heard, true)?;
        Ok(Tensor::cat(&[heard, said], 1)?)
    }

    fn step(&mut self, _: &Tensor, _: usize) -> Result<Option<Tensor>> {
        Ok(None)
    }
}
