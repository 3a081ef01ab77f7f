//! The input of a training run: examples as documents, and the config of a new model.

use anyhow::Result;
use candle_fused::Implementation;
use gpt2_loader::Tokenizer;
use gpt2_model::Config;
use gpt2_model::config::TokenIds;
use gpt2_train::Document;

/// A prompt, which is read, and a completion, which is learned.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
pub struct Example {
    /// May be empty.
    pub prompt: String,
    /// At least one token.
    pub completion: String,
}

/// Examples as documents, of which the completion and, if the tokenizer has one, the end of text is learned. `note` hears what a
/// reader should know: that there is no end of text, and which examples are left out.
///
/// # Errors
/// When the tokenizer fails.
pub fn documents(
    examples: &[Example],
    tokenizer: &Tokenizer,
    note: &mut dyn FnMut(String),
) -> Result<Vec<Document>> {
    let end = tokenizer.end_of_text();
    if end.is_none() {
        note(
            "the tokenizer has no end of text, so the model does not learn where a completion ends"
                .to_owned(),
        );
    }
    let ids_of = |text: &str| if text.is_empty() { Ok(vec![]) } else { tokenizer.encode(text) };
    let mut documents = vec![];
    for (number, example) in (1..).zip(examples) {
        let mut ids = ids_of(&example.prompt)?;
        let completion = ids_of(&example.completion)?;
        // Something must precede the first id that is learned.
        if ids.is_empty() {
            ids.extend(end);
        }
        let learn_from = ids.len().max(1);
        ids.extend(completion);
        ids.extend(end);
        if learn_from >= ids.len() {
            note(format!("example {number} is left out: it has one token, and nothing before it"));
        } else {
            documents.push(Document::new(ids, learn_from)?);
        }
    }
    Ok(documents)
}

/// The size of a new model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewModelSize {
    /// N
    pub n_positions: usize,
    /// C
    pub n_embd: usize,
    /// L
    pub n_layer: usize,
    /// H
    pub n_head: usize,
}

impl NewModelSize {
    /// The config of a new model with so many tokens, of which one may end a text.
    ///
    /// # Errors
    /// When the sizes do not fit one another.
    pub fn config(
        self,
        vocab_size: usize,
        end: Option<u32>,
        implementation: Implementation,
    ) -> Result<Config> {
        let Self { n_positions, n_embd, n_layer, n_head } = self;
        let config = Config {
            vocab_size,
            attn_implementation: implementation,
            n_positions,
            n_embd,
            n_layer,
            n_head,
            // With GPT-2's 0.02, a narrow model starts with scores near 0 and takes long to leave uniform
            // attention, so keep the scale that 0.02 gives at GPT-2 small's width.
            initializer_range: 0.02 * (768.0 / n_embd as f64).sqrt(),
            resid_pdrop: 0.0,
            embd_pdrop: 0.0,
            attn_pdrop: 0.0,
            bos_token_id: end,
            eos_token_id: end.map(TokenIds::One),
            ..Config::gpt2()
        };
        config.validate()?;
        Ok(config)
    }
}
