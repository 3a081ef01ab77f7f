//! `gpt2 graph`: which features of transcoders lead from a prompt to the next token.

use crate::input::prompt::PromptArgs;
use crate::model::args::{FirstTokenArg, ModelArgs};
use crate::output;
use crate::output::terminal::TERMINAL;
use crate::output::written_files::Outputs;
use gpt2_engine::interventions::{InterventionOptions, Prepared};
use gpt2_engine::studies::interpret::graph::{NodeKind, NodeRecord, Options, Report};
use gpt2_engine::studies::{Run, Study};
use gpt2_engine::texts::Content;
use gpt2_engine::words::count;
use gpt2_loader::DictionaryCheckpoint;
use gpt2_view::{Align, Table, graph_page, visible_text, visible_token};
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Transcoders take the place of the MLPs, with the error that they leave, and attention and layer norms stay as the prompt made them.
Then each feature's activation is a sum of what earlier features, errors and tokens add to it: these are the edges. Influence is the
share of all paths to the likeliest next tokens that lead through a node. The replacement score says how much of it comes from
tokens and not from errors, the completeness score how much of what nodes receive does not come from errors. --out writes JSON as
circuit-tracer does, which its page and Neuronpedia read; --page writes a page for a browser, one file that needs no network.
Definitions are circuit-tracer's, but that the first token counts, too.

Examples:
  gpt2 train-features notes.txt --point blocks.0.mlp.hook_in --writes blocks.0.hook_mlp_out --sparsity jumprelu --out t0   # and so on
  gpt2 graph \"I love thee, and thou\" --dictionary t0,t1,t2,t3
  gpt2 graph \"I love thee, and thou\" --dictionary t0,t1,t2,t3 --page graph.html   # to look into, in a browser
  gpt2 graph \"I love thee, and thou\" --dictionary t0 t1 t2 t3 --out graph.json   # for circuit-tracer's page")]
#[command(group = clap::ArgGroup::new("written").args(["out", "page"]).multiple(true))]
pub(crate) struct GraphArgs {
    #[command(flatten)]
    prompt: PromptArgs,
    /// Transcoders of SAELens or gpt2 train-features, one for each layer, in any order
    #[arg(long, value_name = "DIR|NAME", required = true, num_args = 1.., value_delimiter = ',')]
    dictionary: Vec<String>,
    /// The share of all nodes' influence to keep
    #[arg(long, default_value_t = 0.8, value_name = "SHARE")]
    node_threshold: f64,
    /// The share of all edges' influence to keep
    #[arg(long, default_value_t = 0.98, value_name = "SHARE")]
    edge_threshold: f64,
    /// How many next tokens the graph leads to, at most
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_logits: u16,
    /// How probable these tokens must be together
    #[arg(long, default_value_t = 0.95, value_name = "SHARE")]
    logit_mass: f64,
    /// Refuse a text with more nodes than this; memory grows with its square
    #[arg(long, default_value_t = 5000, value_name = "N")]
    max_nodes: usize,
    /// How many features to show
    #[arg(short = 'k', long, default_value_t = 20, value_name = "K", value_parser = clap::value_parser!(u16).range(1..))]
    top_k: u16,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write the graph as JSON, as circuit-tracer does
    #[arg(short, long, value_name = "FILE", help_heading = "Files")]
    out: Option<PathBuf>,
    /// Write the graph as a page for a browser: nodes, their texts and edges, groups of nodes, and commands that check an edge
    #[arg(long, value_name = "FILE", help_heading = "Files")]
    page: Option<PathBuf>,
    /// Read published explanations of features, JSON as Neuronpedia exports them, each with its layer: files with commas between
    #[arg(long, value_name = "FILE", value_delimiter = ',', help_heading = "Files")]
    explanations: Vec<PathBuf>,
    /// Let --out and --page replace existing files
    #[arg(long, requires = "written", help_heading = "Files")]
    overwrite: bool,
    #[command(flatten)]
    first_token: FirstTokenArg,
    #[command(flatten)]
    model: ModelArgs,
}

pub(crate) fn run(args: &GraphArgs) -> anyhow::Result<()> {
    let text = args.prompt.read()?;
    let mut outputs = Outputs::new(args.overwrite);
    for (flag, path) in [("--out", &args.out), ("--page", &args.page)] {
        if let Some(path) = path {
            outputs.add(flag, path);
        }
    }
    let mut inputs = args.prompt.inputs();
    for path in &args.explanations {
        inputs.file("a file of explanations", path);
    }
    for path in args.dictionary.iter().flat_map(|name| DictionaryCheckpoint::paths_in(Path::new(name))) {
        inputs.file("the transcoder", path);
    }
    let opened = args.first_token.of(args.model.open_for(inputs, &outputs)?)?;
    let prompt = args.prompt.encode(text, &opened)?;
    let none = Prepared::new(InterventionOptions::default(), &opened, &TERMINAL)?;
    let run = Run { wants_tensors: false, ..Run::new(&none, &TERMINAL) };
    let mut report = args.options(Content::Ids(prompt.ids)).run(&run)?.report;
    if let Some(path) = &args.out {
        // circuit-tracer's page finds a graph by a name that is its file's.
        if let Some(name) = path.file_stem() {
            report.graph.metadata.slug = name.to_string_lossy().into_owned();
        }
        let mut bytes = serde_json::to_vec_pretty(&report.graph)?;
        bytes.push(b'\n');
        outputs.stage_bytes(path, &bytes)?;
    }
    if let Some(path) = &args.page {
        outputs.stage_bytes(path, &graph_page(&report)?)?;
    }
    outputs.commit_after(|| output::report(args.json, &report, |report| print(report, args.top_k.into())))
}

impl GraphArgs {
    fn options(&self, prompt: Content) -> Options {
        Options {
            prompt,
            dictionary: self.dictionary.clone(),
            node_threshold: self.node_threshold,
            edge_threshold: self.edge_threshold,
            max_logits: self.max_logits.into(),
            logit_mass: self.logit_mass,
            max_nodes: self.max_nodes,
            explanations: self.explanations.clone(),
        }
    }
}

fn print(report: &Report, top_k: usize) -> anyhow::Result<()> {
    let mut out = output::stdout();
    let Report { replacement_score, completeness_score, active_features, nodes, graph, .. } = report;
    writeln!(out, "{}", report.provenance.first_line())?;
    report.dictionaries.iter().try_for_each(|dictionary| writeln!(out, "{dictionary}"))?;
    writeln!(out, "replacement score {replacement_score:.3}, completeness score {completeness_score:.3}")?;
    writeln!(
        out,
        "{} of {nodes} nodes kept ({active_features} features fire), {}\n",
        graph.nodes.len(),
        count(graph.links.len(), "edge")
    )?;
    let of_kind = |kind: NodeKind| graph.nodes.iter().filter(move |node| node.feature_type == kind);
    let logits: Vec<String> = of_kind(NodeKind::Logit).map(|node| visible_text(&node.clerp)).collect();
    writeln!(out, "{}\n", logits.join(", "))?;
    let mut features: Vec<&NodeRecord> = of_kind(NodeKind::Feature).collect();
    features.sort_by(|a, b| a.influence.unwrap_or(1.0).total_cmp(&b.influence.unwrap_or(1.0)));
    let mut columns = vec![
        ("position", Align::Right),
        ("token", Align::Left),
        ("layer", Align::Right),
        ("feature", Align::Right),
        ("activation", Align::Right),
        ("influence up to here", Align::Right),
    ];
    let has_texts = features.iter().any(|node| !node.clerp.is_empty());
    columns.extend(has_texts.then_some(("explanation", Align::Left)));
    let mut table = Table::new(&columns);
    for node in features.iter().take(top_k) {
        let number = node.node_id.split('_').nth(1).unwrap_or_default();
        let mut cells = vec![
            node.ctx_idx.to_string(),
            visible_token(&graph.metadata.prompt_tokens[node.ctx_idx]),
            node.layer.clone(),
            number.to_owned(),
            node.activation.map_or(String::new(), |activation| format!("{activation:.3}")),
            node.influence.map_or(String::new(), |influence| format!("{influence:.3}")),
        ];
        cells.extend(has_texts.then(|| visible_text(&node.clerp)));
        table.row(cells);
    }
    write!(out, "{}", table.render())?;
    Ok(())
}
