//! `gpt2 lens`: what the model would predict after each block.

use crate::output;
use crate::output::written_files::Outputs;
use crate::results::exports::{self, PointArgs};
use crate::results::picture::{DrawnPicture, PictureArgs, PictureMetadata, numbers};
use crate::study::args::StudyArgs;
use crate::study::over_texts::{Job, PromptsArgs};
use candle_core::{D, Device, Tensor};
use candle_nn::ops::log_softmax;
use gpt2_engine::studies::Outcome;
use gpt2_engine::studies::interpret::lens::{Options, Report, TokenGuess};
use gpt2_engine::texts::Content;
use gpt2_view::{Align, Frame, NumberMap, Table};
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("files").args(["export", "picture"]).multiple(true))]
#[command(mut_arg("texts", |arg| arg.conflicts_with("picture")), mut_arg("circuit", |arg| arg.hide(true)))]
#[command(after_help = "\
With --texts, results come one after another, with --json as lines of JSON, and --export holds LINE/NAME for each text.
The picture follows the tokens of the table: the probability of each of them after every block.

Examples:
  gpt2 lens \"To be, or not to\"
  gpt2 lens \"To be, or not to\" --picture lens.pdf --size 8.5cm   # for a paper
  gpt2 lens --model gpt2 --position 3 \"The capital of France is\"
  gpt2 lens --texts prompts.txt --export lens.safetensors   # many texts, one a line")]
pub(crate) struct LensArgs {
    #[command(flatten)]
    pub(crate) prompt: PromptsArgs,
    /// The position whose next token to predict, counted from 0 [default: the last]
    #[arg(long, value_name = "I")]
    pub(crate) position: Option<usize>,
    /// How many tokens to show for each layer
    #[arg(short = 'k', long, default_value_t = 3, value_name = "K", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) top_k: u16,
    /// Write the logits before the first block and after each, as `lens` (blocks + 1, vocabulary), to a .safetensors file
    #[arg(long, value_name = "FILE")]
    pub(crate) export: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) points: PointArgs,
    #[command(flatten)]
    pub(crate) picture: PictureArgs,
    /// Let --export and --picture replace existing files
    #[arg(long, requires = "files", help_heading = "Files")]
    pub(crate) overwrite: bool,
    #[command(flatten)]
    pub(crate) study: StudyArgs,
}

pub(crate) fn run(args: &LensArgs) -> anyhow::Result<()> {
    args.study.check::<Options>()?;
    let text = args.prompt.read()?;
    let mut outputs = Outputs::new(args.overwrite);
    if let Some(path) = &args.export {
        exports::add_to(&mut outputs, path)?;
    }
    args.picture.add(&mut outputs)?;
    let opened = args.study.open_for(args.prompt.inputs(), &outputs)?;
    // A wrong name is no text's fault.
    args.points.of(&opened)?;
    let export = args.export.as_deref();
    let job =
        Job { prompts: &args.prompt, study: &args.study, opened: &opened, chosen: None, export, outputs };
    job.study(text, |prompt| args.options(prompt), |outcome| args.drawn(outcome), print)
}

impl LensArgs {
    fn options(&self, prompt: Content) -> Options {
        let Self { position, top_k, points, .. } = self;
        let export_point = points.export_point.clone();
        Options { prompt, position: *position, top_k: usize::from(*top_k), export_point }
    }

    fn drawn(&self, outcome: &Outcome<Report>) -> anyhow::Result<Option<DrawnPicture>> {
        let Report { provenance, model, position, token, layers } = &outcome.report;
        let about = PictureMetadata {
            title: format!("{model}: what follows {token} (position {position}), after each block"),
            made_by: provenance,
            settings: json!({ "position": position, "top_k": self.top_k }),
        };
        self.picture.drawn(&about, |frame| picture(frame, layers, &outcome.tensors))
    }
}

/// The probability, after each block, of every token that is among the likeliest after one of them: the likeliest at the end
/// first.
fn picture(
    frame: &Frame,
    layers: &[Vec<TokenGuess>],
    tensors: &[(String, Tensor)],
) -> candle_core::Result<Vec<u8>> {
    let lens =
        tensors.iter().find(|(name, _)| name == "lens").map(|(_, logits)| log_softmax(logits, D::Minus1));
    let log_probs = lens.transpose()?.map_or(Ok(vec![]), |lens| lens.to_vec2::<f32>())?;
    let mut tokens: Vec<&TokenGuess> = layers.iter().flatten().collect();
    let at_the_end = |token: &TokenGuess| log_probs.last().map_or(0.0, |row| row[token.id as usize]);
    tokens.sort_by(|a, b| at_the_end(b).total_cmp(&at_the_end(a)).then(a.id.cmp(&b.id)));
    tokens.dedup_by_key(|token| token.id);
    let rows: Vec<String> = ["embeddings".to_owned()].into_iter().chain(numbers(layers.len() - 1)).collect();
    let columns: Vec<String> = tokens.iter().map(|token| token.token.to_string()).collect();
    let values: Vec<f32> =
        log_probs.iter().flat_map(|row| tokens.iter().map(|token| row[token.id as usize].exp())).collect();
    let values = Tensor::from_vec(values, (rows.len(), columns.len()), &Device::Cpu)?;
    let map = NumberMap { row_axis: "after block", column_axis: "next token", ..NumberMap::default() };
    NumberMap { unit: "probability", rows: &rows, columns: &columns, end: Some(1.0), from_zero: true, ..map }
        .draw(frame, &values)
}

fn print(report: &Report) -> anyhow::Result<()> {
    let mut out = output::stdout();
    writeln!(out, "{}", report.provenance.first_line())?;
    writeln!(
        out,
        "what follows {} (position {}), read off the residual stream after each block\n",
        report.token, report.position
    )?;
    let shown = report.layers.first().map_or(0, Vec::len);
    let mut columns = vec![("after", Align::Left)];
    for _ in 0..shown {
        columns.extend([("token", Align::Left), ("p", Align::Right)]);
    }
    let mut table = Table::new(&columns);
    for (i, layer) in report.layers.iter().enumerate() {
        let after = if i == 0 { "embeddings".to_owned() } else { format!("block {}", i - 1) };
        let cells = layer.iter().flat_map(|c| [c.token.to_string(), format!("{:.3}", c.probability)]);
        table.row(std::iter::once(after).chain(cells).collect());
    }
    write!(out, "{}", table.render())?;
    Ok(())
}
