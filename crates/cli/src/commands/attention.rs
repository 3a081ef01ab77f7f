//! `gpt2 attention`: what each token attends to.

use super::page::{self, Contents};
use crate::args::AttentionArgs;
use crate::output;
use crate::session::Session;
use crate::values::select;
use candle_core::{DType, Tensor};
use gpt2_model::ForwardArgs;
use gpt2_model::hooks::Interventions;
use gpt2_view::{AttentionJson, LayerJson, heatmap, overview, summarize, visible_text};
use std::io::{BufWriter, Write};
use std::process::ExitCode;

/// The weights and outputs of the chosen layers and heads.
struct Attention {
    layers: Vec<usize>,
    heads: Vec<usize>,
    weights: Vec<Tensor>, // a layer: (heads, T, T) f32
    outputs: Vec<Tensor>, // a layer: (T, C) f32
    hidden: Tensor,       // after ln_f: (T, C)
}

pub(crate) fn run(args: &AttentionArgs) -> anyhow::Result<ExitCode> {
    let text = args.prompt.read()?;
    let session = args.model.session()?;
    let config = session.model.config();
    let layers = select("layer", &args.layer, config.n_layer)?;
    let heads = select("head", &args.head, config.n_head)?;
    let prompt = args.prompt.encode(text, &session)?;
    let interventions = args.interventions.build(config)?;
    let attention = attend(&session, &prompt.ids, layers, heads, &interventions)?;

    if let Some(path) = &args.export {
        let weights = Tensor::stack(&attention.weights, 0)?; // (layers, heads, T, T)
        let outputs = Tensor::stack(&attention.outputs, 0)?; // (layers, T, C)
        output::export(
            path,
            &[("attentions", &weights), ("attention_outputs", &outputs)],
            &[
                ("model", session.name.clone()),
                ("ids", serde_json::to_string(&prompt.ids)?),
                ("tokens", serde_json::to_string(&prompt.tokens)?),
                ("layers", serde_json::to_string(&attention.layers)?),
                ("heads", serde_json::to_string(&attention.heads)?),
            ],
        )?;
    }
    if args.html.is_some() || args.open {
        let (layers, heads, hidden) = (&attention.layers, &attention.heads, &attention.hidden);
        let contents = Contents { session: &session, prompt: &prompt, layers, heads, hidden };
        page::show(args.html.as_deref(), args.open, &contents, |i| Ok(attention.weights[i].clone()))?;
    }
    let chosen = !(args.layer.is_empty() && args.head.is_empty());
    if args.json {
        print_json(&attention, prompt.tokens, chosen)?;
    } else if chosen {
        print_heatmaps(&attention, &prompt.tokens, args)?;
    } else {
        print_overview(&attention, &session, &prompt.tokens, args)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn attend(
    session: &Session,
    ids: &[u32],
    layers: Vec<usize>,
    heads: Vec<usize>,
    interventions: &Interventions,
) -> anyhow::Result<Attention> {
    let args = ForwardArgs {
        hooks: Some(interventions),
        output_attentions: true,
        output_attention_outputs: true,
        ..Default::default()
    };
    // The logits are not shown, so the output projection is left out.
    let output = session.model.transformer.forward(&session.input_ids(ids)?, args)?;
    let index: Vec<u32> = heads.iter().map(|&h| u32::try_from(h)).collect::<Result<_, _>>()?;
    let index = Tensor::new(index, &session.device)?;
    let hidden = output.last_hidden_state.squeeze(0)?; // (T, C)
    let mut attention = Attention { layers, heads, weights: vec![], outputs: vec![], hidden };
    for &layer in &attention.layers {
        let weights = output.attentions[layer].squeeze(0)?.index_select(&index, 0)?; // (heads, T, T)
        attention.weights.push(weights.to_dtype(DType::F32)?);
        attention.outputs.push(output.attention_outputs[layer].squeeze(0)?.to_dtype(DType::F32)?); // (T, C)
    }
    Ok(attention)
}

fn print_json(attention: &Attention, tokens: Vec<String>, with_weights: bool) -> anyhow::Result<()> {
    let layers = attention
        .layers
        .iter()
        .zip(&attention.weights)
        .map(|(&layer, weights)| LayerJson::new(layer, &attention.heads, weights, with_weights))
        .collect::<Result<_, _>>()?;
    let mut out = BufWriter::new(output::stdout());
    AttentionJson { tokens, layers }.write(&mut out)?;
    out.flush()?;
    Ok(())
}

fn print_heatmaps(attention: &Attention, tokens: &[String], args: &AttentionArgs) -> anyhow::Result<()> {
    let style = output::style(args.color);
    let mut out = output::stdout();
    for (&layer, weights) in attention.layers.iter().zip(&attention.weights) {
        for (i, &head) in attention.heads.iter().enumerate() {
            let map = heatmap(&weights.get(i)?, tokens, tokens, &style)?;
            writeln!(out, "layer {layer}, head {head}: a row for each token, what it attends to")?;
            writeln!(out, "{map}")?;
        }
    }
    Ok(())
}

fn print_overview(
    attention: &Attention,
    session: &Session,
    tokens: &[String],
    args: &AttentionArgs,
) -> anyhow::Result<()> {
    let mut layers = vec![];
    for (&layer, weights) in attention.layers.iter().zip(&attention.weights) {
        let summaries = summarize(weights)?;
        layers.push((layer, attention.heads.iter().copied().zip(summaries).collect()));
    }
    let mut out = output::stdout();
    writeln!(
        out,
        "{}: {} tokens, {} layers of {} heads",
        visible_text(&session.name),
        tokens.len(),
        attention.layers.len(),
        attention.heads.len()
    )?;
    writeln!(out, "means over the tokens; for one head token by token: --layer L --head H\n")?;
    write!(out, "{}", overview(&layers, &output::style(args.color)))?;
    Ok(())
}
