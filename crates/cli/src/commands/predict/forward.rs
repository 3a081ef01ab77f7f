//! `gpt2 forward`: the next token's probabilities, and how surprising the prompt is.

use crate::interventions::args::holds_one_run;
use crate::output;
use crate::output::written_files::Outputs;
use crate::results::exports;
use crate::results::exports::PointArgs;
use crate::study::args::StudyArgs;
use crate::study::over_texts::{Job, PromptsArgs};
use gpt2_engine::studies::predict::forward::{OneRun, Options, Report};
use gpt2_engine::texts::Content;
use gpt2_view::Align::{Left, Right};
use gpt2_view::Table;
use std::io::Write;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
With --texts, results come one after another, with --json as lines of JSON, and --export holds LINE/NAME for each text.

Examples:
  gpt2 forward \"To be, or not to\"
  gpt2 forward --model gpt2 --json --ids 15496,11,314
  gpt2 forward \"To be, or not to\" --ablate 1.2,1.3 --block 5:2   # ablate two heads, hide token 2 from token 5
  gpt2 forward \"To be, or not to\" --ablate '1.*' --compare   # what layer 1's heads change
  gpt2 forward \"O Romeo\" --export run.safetensors --export-point blocks.1.attn.hook_z,blocks.*.hook_resid_post
  gpt2 forward --texts prompts.jsonl --json   # a line of JSON for each text")]
pub(crate) struct ForwardArgs {
    #[command(flatten)]
    pub(crate) prompt: PromptsArgs,
    /// How many next tokens to show
    #[arg(short = 'k', long, default_value_t = 10, value_name = "K")]
    pub(crate) top_k: usize,
    /// Show the plain run beside the one with interventions
    #[arg(long)]
    pub(crate) compare: bool,
    /// Write the logits and hidden states to a .safetensors file
    #[arg(long, value_name = "FILE")]
    pub(crate) export: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) points: PointArgs,
    /// Let --export replace an existing file
    #[arg(long, requires = "export")]
    pub(crate) overwrite: bool,
    #[command(flatten)]
    pub(crate) study: StudyArgs,
}

pub(crate) fn run(args: &ForwardArgs) -> anyhow::Result<()> {
    args.study.check::<Options>()?;
    if args.compare && args.export.is_some() {
        return Err(holds_one_run("--export"));
    }
    let text = args.prompt.read()?;
    let mut outputs = Outputs::new(args.overwrite);
    if let Some(path) = &args.export {
        exports::add_to(&mut outputs, path)?;
    }
    let opened = args.study.open_for(args.prompt.inputs(), &outputs)?;
    // A wrong name is no text's fault.
    args.points.of(&opened)?;
    let prompts = &args.prompt;
    let study = &args.study;
    let export = args.export.as_deref();
    let job = Job { prompts, study, opened: &opened, chosen: None, export, outputs };
    job.study(text, |prompt| args.options(prompt), |_| Ok(None), print)
}

impl ForwardArgs {
    fn options(&self, prompt: Content) -> Options {
        let &Self { top_k, compare, .. } = self;
        Options { prompt, top_k, compare, export_point: self.points.export_point.clone() }
    }
}

fn print(report: &Report) -> anyhow::Result<()> {
    let mut out = output::stdout();
    writeln!(out, "{}\n", report.provenance.first_line())?;
    if let Some(plain) = &report.plain {
        return print_both(&mut out, plain, report);
    }
    let Report { run, .. } = report;
    let mut prompt = Table::new(&[("position", Right), ("id", Right), ("token", Left), ("log-prob", Right)]);
    for (i, t) in run.tokens.iter().enumerate() {
        let log_prob = t.log_prob.map_or_else(String::new, |l| format!("{l:.3}"));
        prompt.row(vec![i.to_string(), t.id.to_string(), t.token.to_string(), log_prob]);
    }
    writeln!(out, "{}", prompt.render())?;
    if let Some(perplexity) = run.perplexity {
        writeln!(out, "perplexity {perplexity:.3} over {} tokens\n", run.tokens.len() - 1)?;
    }
    let mut next = Table::new(&[("next token", Left), ("id", Right), ("probability", Right)]);
    for c in &run.next {
        next.row(vec![c.token.to_string(), c.id.to_string(), format!("{:.4}", c.probability)]);
    }
    write!(out, "{}", next.render())?;
    Ok(())
}

/// The plain run, the changed one, and the change.
fn print_both(out: &mut impl Write, plain: &OneRun, report: &Report) -> anyhow::Result<()> {
    let runs = [("plain", Right), ("changed", Right), ("change", Right)];
    let three = |a: f32, b: f32, places: usize| {
        [format!("{a:.places$}"), format!("{b:.places$}"), format!("{:+.places$}", b - a)]
    };
    writeln!(out, "log-probability of each token of the prompt:\n")?;
    let mut columns = vec![("position", Right), ("id", Right), ("token", Left)];
    columns.extend(runs);
    let mut prompt = Table::new(&columns);
    for (i, (t, changed)) in plain.tokens.iter().zip(&report.run.tokens).enumerate() {
        let mut row = vec![i.to_string(), t.id.to_string(), t.token.to_string()];
        if let (Some(plain), Some(changed)) = (t.log_prob, changed.log_prob) {
            row.extend(three(plain, changed, 3));
        }
        prompt.row(row);
    }
    writeln!(out, "{}", prompt.render())?;
    if let (Some(before), Some(after)) = (plain.perplexity, report.run.perplexity) {
        let over = plain.tokens.len() - 1;
        writeln!(out, "perplexity {before:.3} plain, {after:.3} changed, over {over} tokens\n")?;
    }
    writeln!(out, "probability of the next token, the most probable ones of both runs:\n")?;
    let mut columns = vec![("next token", Left), ("id", Right)];
    columns.extend(runs);
    let mut next = Table::new(&columns);
    for c in &report.changes {
        let mut row = vec![c.token.to_string(), c.id.to_string()];
        row.extend(three(c.plain, c.changed, 4));
        next.row(row);
    }
    write!(out, "{}", next.render())?;
    Ok(())
}
