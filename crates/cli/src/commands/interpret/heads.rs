//! `gpt2 heads`: previous-token, duplicate-token and induction scores of each head, and how much it copies.

use crate::output::read_files::ReadFiles;
use crate::output::terminal::TERMINAL;
use crate::output::written_files::Outputs;
use crate::output::{self, note};
use crate::results::picture::{HeadMap, PictureArgs, PictureMetadata, head_maps};
use crate::study::args::StudyArgs;
use anyhow::bail;
use candle_core::{Device, Tensor};
use gpt2_circuits::Circuits;
use gpt2_engine::RunProvenance;
use gpt2_engine::interventions::Reads;
use gpt2_engine::words::count;
use gpt2_model::analysis::{HeadScores, RepeatedTokens, Score, chance_scores, head_scores};
use gpt2_model::hooks::Head;
use gpt2_view::{Align, Frame, MIN_WIDTH, Table, visible_text, wrap};
use serde::Serialize;
use serde_json::json;
use std::fmt::Write as _;
use std::io::Write as _;

#[derive(Debug, clap::Args)]
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
    #[command(flatten)]
    pub(crate) picture: PictureArgs,
    /// Let --picture replace an existing file
    #[arg(long, requires = "drawn", help_heading = "Files")]
    pub(crate) overwrite: bool,
    #[command(flatten)]
    pub(crate) study: StudyArgs,
}

#[derive(Serialize)]
struct Report {
    provenance: RunProvenance,
    model: String,
    length: u16,
    repeats: u16,
    batch: u16,
    /// Whether each text begins with the model's first token.
    bos: bool,
    seed: u64,
    /// The texts' tokens, one row each.
    ids: Vec<Vec<u32>>,
    /// The scores of uniform attention.
    chance: Chance,
    heads: Vec<Row>,
}

#[derive(Clone, Copy, Serialize)]
struct Chance {
    previous_token: f64,
    duplicate_token: f64,
    induction: f64,
}

/// A mean over the texts; its standard error is null for a single text.
#[derive(Clone, Copy, Serialize)]
struct MeanOverTexts {
    mean: f64,
    standard_error: Option<f64>,
}

impl From<Score> for MeanOverTexts {
    fn from(score: Score) -> Self {
        let error = Some(score.standard_error).filter(|error| !error.is_nan());
        Self { mean: score.mean, standard_error: error }
    }
}

#[derive(Serialize)]
struct Row {
    layer: usize,
    head: usize,
    /// The intervention that silences the head, such as "ablated"; `None` if the run uses its output.
    #[serde(skip_serializing_if = "Option::is_none")]
    silenced: Option<&'static str>,
    previous_token: MeanOverTexts,
    duplicate_token: MeanOverTexts,
    induction: MeanOverTexts,
    /// Olsson et al.'s: the mean over all pairs of a token and an earlier copy, rather than the sum over the copies.
    prefix_matching: f64,
    /// The sum of the eigenvalues of the OV circuit divided by the sum of their sizes; null for a head whose values are 0.
    copying: Option<f64>,
}

impl Row {
    fn name(&self) -> String {
        format!("{}.{}", self.layer, self.head)
    }

    fn numbers(&self) -> [MeanOverTexts; 3] {
        [self.previous_token, self.duplicate_token, self.induction]
    }
}

/// The kinds of heads, in the order of [`Row::numbers`].
const KINDS: [&str; 3] = ["previous-token", "duplicate-token", "induction"];

/// A head is clearly above chance if its score is at least this part of the way from uniform attention to 1: the best of
/// many heads always comes out a little above.
const CLEARLY: f64 = 0.05;

/// An induction head also copies if its copying score is at least this.
const COPIES: f64 = 0.1;

/// The most heads of a kind to name.
const LISTED: usize = 12;

pub(crate) fn run(args: &HeadsArgs) -> anyhow::Result<()> {
    let mut outputs = Outputs::new(args.overwrite);
    args.picture.add(&mut outputs)?;
    let opened = args.study.open_for(ReadFiles::default(), &outputs)?;
    let config = opened.model.config();
    let seed = args.study.model.run.seed;
    let bos = config.bos_token_id.filter(|&id| !args.no_bos && (id as usize) < config.vocab_size);
    if bos.is_none() && !args.no_bos {
        note("the model's config names no first token (bos_token_id): the texts begin with a random one");
    }
    let lengths = (usize::from(args.length), usize::from(args.repeats));
    let tokens = usize::from(bos.is_some()) + lengths.0 * lengths.1;
    let n = config.n_positions;
    if tokens > n {
        bail!("{tokens} tokens in a text, but the model has n_positions = {n}: lower --length or --repeats");
    }
    let texts = RepeatedTokens::random(bos, lengths, args.batch.into(), config.vocab_size, seed);
    let changes =
        args.study.interventions.options().build(&opened, Reads::Others("random tokens"), &TERMINAL)?;
    let scores = head_scores(&opened.model.transformer, &texts, Some(&changes.list))?;
    let numbers: Vec<f64> = scores.iter().flatten().map(|head| head.induction.mean).collect();
    let read = Tensor::from_vec(texts.rows.concat(), (texts.rows.len(), texts.tokens()), &opened.device)?;
    args.study.finite.check(&opened, &read, Some(&changes.list), [&Tensor::new(numbers, &Device::Cpu)?])?;
    let circuits = match Circuits::new(&opened.model) {
        Ok(circuits) => Some(circuits),
        Err(_) if args.study.finite.allow_nonfinite => None,
        Err(error) => return Err(error.into()),
    };
    let mut heads = vec![];
    for (layer, scores) in scores.into_iter().enumerate() {
        for (head, HeadScores { previous_token, duplicate_token, induction }) in
            scores.into_iter().enumerate()
        {
            let copying = circuits.as_ref().map(|of| of.copying_score(Head { layer, head })).transpose()?;
            heads.push(Row {
                layer,
                head,
                silenced: changes.list.silence(Head { layer, head }, texts.tokens()),
                previous_token: previous_token.into(),
                duplicate_token: duplicate_token.into(),
                induction: induction.into(),
                prefix_matching: induction.mean / texts.copies_per_query(),
                copying: copying.filter(|score| !score.is_nan()),
            });
        }
    }
    let [previous_token, duplicate_token, induction] = chance_scores(&texts);
    let report = Report {
        provenance: RunProvenance::of_tokens(&opened, texts.tokens())?.under(&changes),
        model: opened.name,
        length: args.length,
        repeats: args.repeats,
        batch: args.batch,
        bos: bos.is_some(),
        seed,
        ids: texts.rows,
        chance: Chance { previous_token, duplicate_token, induction },
        heads,
    };
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
    outputs.commit_after(|| output::report(args.study.json, &report, print))
}

/// A map of each of the scores, heads by layer.
fn picture(frame: &Frame, rows: &[Row]) -> candle_core::Result<Vec<u8>> {
    let heads = rows.iter().filter(|row| row.layer == 0).count();
    let map = |of: &dyn Fn(&Row) -> f64| {
        let values: Vec<f64> = rows.iter().map(of).collect();
        Tensor::from_vec(values, (rows.len() / heads.max(1), heads), &Device::Cpu)
    };
    let maps = (0..KINDS.len())
        .map(|i| map(&|row| row.numbers()[i].mean))
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

fn print(report: &Report) -> anyhow::Result<()> {
    let mut out = output::stdout();
    writeln!(
        out,
        "{}: {} of {}, {} times each{}; {}",
        visible_text(&report.model),
        count(report.batch.into(), "text"),
        count(report.length.into(), "random token"),
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
    for row in &report.heads {
        let mut cells = vec![format!("{}.{}", row.layer, row.head)];
        for MeanOverTexts { mean, standard_error } in row.numbers() {
            let error = standard_error.map_or_else(String::new, |error| format!("±{error:.3}"));
            cells.extend([format!("{mean:.3}"), error]);
        }
        cells.push(row.copying.map_or_else(String::new, |copying| format!("{copying:+.2}")));
        cells.push(row.silenced.unwrap_or_default().to_owned());
        table.row(cells);
    }
    writeln!(out, "{}", table.render())?;
    let mut out_wrapped = |text: &str| writeln!(out, "{}", wrap(text, output::stdout_width().max(MIN_WIDTH)));
    out_wrapped(&format!(
        "heads that score more than {:.0} % of the way from chance to 1, best first:",
        100.0 * CLEARLY
    ))?;
    let mut next = None;
    for (i, (kind, chance)) in KINDS.into_iter().zip(chance).enumerate() {
        let score = |row: &Row| row.numbers()[i].mean;
        let least = chance + CLEARLY * (1.0 - chance);
        let mut found: Vec<&Row> = report.heads.iter().filter(|row| score(row) > least).collect();
        found.sort_by(|a, b| score(b).total_cmp(&score(a)));
        if found.is_empty() {
            out_wrapped(&format!("no {kind} head: none is above {least:.3}"))?;
            continue;
        }
        let named: Vec<String> = found.iter().take(LISTED).map(|row| row.name()).collect();
        let mut line = format!("{kind} heads, above {least:.3}: {}", named.join(", "));
        if found.len() > LISTED {
            let _ = write!(line, " and {} more", found.len() - LISTED);
        }
        out_wrapped(&line)?;
        next = Some(found[0].name());
        // An induction head predicts what it finds by copying it.
        let copies = |row: &&&Row| row.copying.is_some_and(|copying| copying >= COPIES);
        if let (2, Some(best)) = (i, found.iter().find(copies)) {
            let name = best.name();
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
