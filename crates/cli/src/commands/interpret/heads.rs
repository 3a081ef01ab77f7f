//! `gpt2 heads`: previous-token, duplicate-token and induction scores of each head, and how much it copies.

use crate::output;
use crate::output::rows;
use crate::output::written_files::Outputs;
use crate::results::picture::{HeadMap, PictureArgs, PictureMetadata, head_maps};
use crate::study::args::StudyArgs;
use candle_core::{Device, Tensor};
use gpt2_engine::ReadFiles;
use gpt2_engine::studies::interpret::heads::{Chance, MeanOverTexts, Options, Report, ScoredHead};
use gpt2_engine::words::count;
use gpt2_view::{Align, Frame, MIN_WIDTH, Table, visible_text, wrap};
use serde_json::json;
use std::fmt::Write as _;
use std::io::Write as _;

#[derive(Debug, clap::Args)]
#[command(mut_arg("block", |arg| arg.hide(true)))]
#[command(mut_arg("patch", |arg| arg.hide(true)))]
#[command(mut_arg("from_prompt", |arg| arg.hide(true)))]
#[command(after_help = "\
A text is the model's first token, then random tokens that come several times (Olsson et al.: 25 tokens four times). Each
score is a mean weight, with its standard error over the texts. Previous-token: the weight on the token before.
Duplicate-token: on all earlier copies of the token. Induction: on the tokens after those copies, which is what comes next.
Copying needs no text: from -1 to 1, it says whether the weights raise the logits of the tokens that the head attends to.
The picture has a map of each of the four, heads by layer.

Examples:
  gpt2 heads
  gpt2 heads --model gpt2 --batch 20 --json
  gpt2 heads --picture heads.pdf --size 17cm   # for a paper
  gpt2 heads --ablate 0.3   # who still finds the repetition without head 3 of layer 0")]
pub(crate) struct HeadsArgs {
    /// Random tokens, which a text repeats
    #[arg(long, default_value_t = 25, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) length: u16,
    /// How often a text has them
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(2..))]
    pub(crate) repeats: u16,
    /// Texts
    #[arg(short, long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) batch: u16,
    /// Begin with a random token instead of the model's first token (<|endoftext|> in GPT-2)
    #[arg(long)]
    pub(crate) no_bos: bool,
    /// List every head, not only the 15 of many that stand out most
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) picture: PictureArgs,
    /// Let --picture replace an existing file
    #[arg(long, requires = "drawn", help_heading = "Files")]
    pub(crate) overwrite: bool,
    #[command(flatten)]
    pub(crate) study: StudyArgs,
}

fn name(row: &ScoredHead) -> String {
    format!("{}.{}", row.layer, row.head)
}

fn numbers(row: &ScoredHead) -> [MeanOverTexts; 3] {
    [row.previous_token, row.duplicate_token, row.induction]
}

/// The kinds of heads, in the order of [`numbers`].
const KINDS: [&str; 3] = ["previous-token", "duplicate-token", "induction"];

/// A head is clearly above chance if its score is at least this part of the way from uniform attention to 1: the best of
/// many heads always comes out a little above.
const CLEARLY: f64 = 0.05;

/// An induction head also copies if its copying score is at least this.
const COPIES: f64 = 0.1;

/// The most heads of a kind to name.
const LISTED: usize = 12;

pub(crate) fn run(args: &HeadsArgs) -> anyhow::Result<()> {
    args.study.check::<Options>()?;
    let mut outputs = Outputs::new(args.overwrite);
    args.picture.add(&mut outputs)?;
    let opened = args.study.open_for(ReadFiles::default(), &outputs)?;
    let report = args.study.outcome(&opened, &args.options(), false)?.report;
    let about = PictureMetadata {
        title: format!("{}: kinds of heads", report.model),
        made_by: &report.provenance,
        settings: json!({
            "length": report.length,
            "repeats": report.repeats,
            "batch": report.batch,
            "bos": report.bos,
            "seed": report.seed,
        }),
    };
    args.picture.draw(&mut outputs, &about, |frame| picture(frame, &report.heads))?;
    outputs.commit_after(|| output::report(args.study.json, &report, |report| print(report, args.all)))
}

impl HeadsArgs {
    fn options(&self) -> Options {
        Options {
            length: self.length.into(),
            repeats: self.repeats.into(),
            batch: self.batch.into(),
            no_bos: self.no_bos,
        }
    }
}

/// A map of each of the scores, heads by layer.
fn picture(frame: &Frame, rows: &[ScoredHead]) -> candle_core::Result<Vec<u8>> {
    let heads = rows.iter().filter(|row| row.layer == 0).count();
    let map = |of: &dyn Fn(&ScoredHead) -> f64| {
        let values: Vec<f64> = rows.iter().map(of).collect();
        Tensor::from_vec(values, (rows.len() / heads.max(1), heads), &Device::Cpu)
    };
    let maps = (0..KINDS.len())
        .map(|i| map(&|row| numbers(row)[i].mean))
        .collect::<candle_core::Result<Vec<_>>>()?;
    // No score goes beyond 1, and one near 0 looks like it.
    let end = Some(1.0);
    let copying = map(&|row| row.copying.unwrap_or(f64::NAN))?;
    let scores = KINDS.into_iter().zip(&maps).map(|(name, values)| HeadMap {
        name,
        unit: "mean weight",
        values,
        end,
        from_zero: true,
    });
    let copying = HeadMap { name: "copying", unit: "copying score", values: &copying, end, from_zero: false };
    head_maps(frame, &scores.chain([copying]).collect::<Vec<_>>())
}

/// The heads to list, and whether they are all: in their order, or of many the ones that stand out most, those first.
fn listed(report: &Report, chance: [f64; 3], all: bool) -> (Vec<&ScoredHead>, bool) {
    let mut heads: Vec<&ScoredHead> = report.heads.iter().collect();
    let shown = rows::shown(heads.len(), all);
    if shown == heads.len() {
        return (heads, true);
    }
    // How far it is from chance to 1, in the kind in which it is farthest.
    let stands_out = |row: &ScoredHead| {
        let scores = numbers(row).into_iter().zip(chance);
        scores.map(|(score, chance)| (score.mean - chance) / (1.0 - chance)).fold(f64::NEG_INFINITY, f64::max)
    };
    heads.sort_by(|a, b| stands_out(b).total_cmp(&stands_out(a)));
    heads.truncate(shown);
    (heads, false)
}

fn print(report: &Report, all: bool) -> anyhow::Result<()> {
    let mut out = output::stdout();
    writeln!(
        out,
        "{}: {} of {}, {} times each{}; {}",
        visible_text(&report.model),
        count(report.batch, "text"),
        count(report.length, "random token"),
        report.repeats,
        if report.bos { ", after the model's first token" } else { "" },
        report.provenance.caption()
    )?;
    writeln!(
        out,
        "mean weights with standard errors: on the token before (previous),\n\
         on all earlier copies of the token (duplicate), on what followed those copies (induction)\n\
         copying: whether the weights raise the logits of the tokens attended to, -1 to 1\n"
    )?;
    let titles = ["head", "previous", "", "duplicate", "", "induction", "", "copying"];
    let mut table = Table::new(&titles.map(|title| (title, Align::Right)));
    let Chance { previous_token, duplicate_token, induction } = report.chance;
    let chance = [previous_token, duplicate_token, induction];
    let mut first = vec!["chance".to_owned()];
    first.extend(chance.iter().flat_map(|chance| [format!("{chance:.3}"), String::new()]));
    first.push(String::new());
    table.row(first);
    let (heads, is_whole) = listed(report, chance, all);
    if !is_whole {
        writeln!(out, "the {} heads that stand out most, those first\n", heads.len())?;
    }
    for row in heads {
        let mut cells = vec![format!("{}.{}", row.layer, row.head)];
        for MeanOverTexts { mean, standard_error } in numbers(row) {
            let error = standard_error.map_or_else(String::new, |error| format!("±{error:.3}"));
            cells.extend([format!("{mean:.3}"), error]);
        }
        cells.push(row.copying.map_or_else(String::new, |copying| format!("{copying:+.2}")));
        cells.push(row.silenced.unwrap_or_default().to_owned());
        table.row(cells);
    }
    write!(out, "{}", table.render())?;
    if let Some(more) = rows::more(report.heads.len(), all) {
        writeln!(out, "{more}")?;
    }
    writeln!(out)?;
    print_kinds(&mut out, report, chance)
}

/// The heads of each kind, and what to look at next.
fn print_kinds(out: &mut output::Stdout, report: &Report, chance: [f64; 3]) -> anyhow::Result<()> {
    let mut out_wrapped = |text: &str| writeln!(out, "{}", wrap(text, output::stdout_width().max(MIN_WIDTH)));
    out_wrapped(&format!(
        "heads that score more than {:.0} % of the way from chance to 1, best first:",
        100.0 * CLEARLY
    ))?;
    let mut next = None;
    for (i, (kind, chance)) in KINDS.into_iter().zip(chance).enumerate() {
        let score = |row: &ScoredHead| numbers(row)[i].mean;
        let least = chance + CLEARLY * (1.0 - chance);
        let mut found: Vec<&ScoredHead> = report.heads.iter().filter(|row| score(row) > least).collect();
        found.sort_by(|a, b| score(b).total_cmp(&score(a)));
        if found.is_empty() {
            out_wrapped(&format!("no {kind} head: none is above {least:.3}"))?;
            continue;
        }
        let named: Vec<String> = found.iter().take(LISTED).map(|row| name(row)).collect();
        let mut line = format!("{kind} heads, above {least:.3}: {}", named.join(", "));
        if found.len() > LISTED {
            let _ = write!(line, " and {} more", found.len() - LISTED);
        }
        out_wrapped(&line)?;
        next = Some(name(found[0]));
        // An induction head predicts what it finds by copying it.
        let copies = |row: &&&ScoredHead| row.copying.is_some_and(|copying| copying >= COPIES);
        if let (2, Some(best)) = (i, found.iter().find(copies)) {
            let name = name(best);
            let copying = best.copying.unwrap_or_default();
            out_wrapped(&format!(
                "the best induction head that also copies: {name} (copying {copying:+.2})"
            ))?;
            next = Some(name);
        }
    }
    if let Some(name) = next {
        writeln!(out, "\nnext, what it attends to: gpt2 attention TEXT --head {name}")?;
    }
    Ok(())
}
