//! The features of a dictionary in a model: which of them fire in a text, how well they rebuild the value that the dictionary
//! reads, what each of them adds to the residual stream, and what they add to a prediction.
//!
//! ```no_run
//! use candle_core::{Device, Tensor};
//! use gpt2_circuits::features::Features;
//! use gpt2_loader::DictionaryCheckpoint;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let model: gpt2_model::Gpt2LMHeadModel = unimplemented!();
//! let checkpoint = DictionaryCheckpoint::open("blocks.8.hook_resid_pre".as_ref())?;
//! let config = checkpoint.config();
//! let features = Features::new(&checkpoint.load()?, config.hook, config.hook_out, model.config())?;
//! let input_ids = Tensor::new(&[[464u32, 3139, 286, 4881]], &Device::Cpu)?;
//! for (position, fired) in features.run(&model, &input_ids, None)?.code.iter().enumerate() {
//!     println!("{position}: {fired:?}");
//! }
//! # Ok(())
//! # }
//! ```

mod attention;
mod related;
mod run;
mod sizes;
mod tally;

pub use attention::{AttentionPairs, PartPair};
pub use related::{ReadingHead, RelatedFeature};
pub use run::{FeatureAttribution, FeatureRun, Features, Losses};
pub use sizes::{ActivationSizes, Bar};
pub use tally::{Around, Peak, Tally, Tokens, Use};
