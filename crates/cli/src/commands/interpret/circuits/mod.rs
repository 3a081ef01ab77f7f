//! `gpt2 circuits`: what the weights of heads do by token, and how heads feed one another.

mod picture;
mod print;

use crate::model::args::ModelArgs;
use crate::output;
use crate::output::terminal::TERMINAL;
use crate::output::written_files::Outputs;
use crate::results::picture::{PictureArgs, PictureMetadata};
use crate::values::one_of;
use gpt2_engine::ReadFiles;
use gpt2_engine::interventions::{InterventionOptions, Prepared};
use gpt2_engine::studies::interpret::circuits::{HEAD_INPUTS, HeadInput, HeadName, Options, Report};
use gpt2_engine::studies::{Outcome, Run, Study};
use gpt2_engine::texts::Answer;
use gpt2_model::hooks::Head;
use serde_json::{Value, json};

#[derive(Debug, clap::Args)]
// A group, because clap forgets a required argument that conflicts with a given one.
#[command(group = clap::ArgGroup::new("of_one").args(["head", "named"]))]
#[command(after_help = "\
This reads weights alone, without a text. Layer norms are folded in and everything is centered, as in TransformerLens. QK says
which token looks for which. OV says which tokens become likelier when a token is attended to. The picture has a map of the
copying scores and one of each composition. Of one head, it has the tables of QK and OV for the tokens of the largest entries.
Tokens whose embeddings lie where those of impossible bytes lie, which training hardly saw, are left out of one head's tables.

Examples:
  gpt2 circuits   # which heads copy, and which feed which
  gpt2 circuits 1.2   # one head: largest entries, eigenvalues, singular vectors
  gpt2 circuits 1.2 --token \" king\"   # what it does with one token
  gpt2 circuits --composition k --picture keys.pdf --size 8.5cm   # for a paper
  gpt2 circuits 5.1 --model gpt2 --json")]
pub(crate) struct CircuitsArgs {
    /// A head, LAYER.HEAD counted from 0 [default: all heads, and how they feed one another]
    #[arg(value_name = "L.H", value_parser = str::parse::<Head>)]
    pub(crate) head: Option<Head>,
    /// A head, by the name that it has in gpt2 attention
    #[arg(id = "named", long = "head", value_name = "L.H", hide = true, value_parser = str::parse::<Head>)]
    pub(crate) named: Option<Head>,
    /// Show the rows of these tokens, with their leading space, instead of the largest entries (repeatable)
    #[arg(long, value_name = "TOKEN", requires = "of_one")]
    pub(crate) token: Vec<String>,
    /// Rank only compositions of queries, of keys or of values (repeatable) [default: all three]
    #[arg(long, value_name = "KIND", conflicts_with = "of_one", value_parser = one_of(HEAD_INPUTS))]
    pub(crate) composition: Vec<HeadInput>,
    /// How many entries to show
    #[arg(short = 'k', long, default_value_t = 10, value_name = "K", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) top: u16,
    /// Also list tokens that training hardly saw, such as bytes that no text has. Without it the tables of one head leave them out,
    /// and say how many; --json has them always
    #[arg(long)]
    pub(crate) all_tokens: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) picture: PictureArgs,
    /// Let --picture replace an existing file
    #[arg(long, requires = "drawn", help_heading = "Files")]
    pub(crate) overwrite: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

pub(crate) fn run(args: &CircuitsArgs) -> anyhow::Result<()> {
    let mut outputs = Outputs::new(args.overwrite);
    args.picture.add(&mut outputs)?;
    let opened = args.model.open_for(ReadFiles::default(), &outputs)?;
    let none = Prepared::new(InterventionOptions::default(), &opened, &TERMINAL)?;
    let wants_tensors = args.picture.is_wanted();
    let Outcome { report, tensors } =
        args.options().run(&Run { wants_tensors, ..Run::new(&none, &TERMINAL) })?;
    let (title, made_by, settings) = match &report {
        Report::All(all) => {
            ("copying, and how heads feed one another".to_owned(), &all.provenance, Value::Null)
        }
        Report::One(one) => {
            let settings = json!({ "tokens": args.token, "top": args.top });
            (format!("head {}.{} by token", one.layer, one.head), &one.provenance, settings)
        }
    };
    let about = PictureMetadata { title: format!("{}: {title}", opened.title()), made_by, settings };
    args.picture.draw(&mut outputs, &about, |frame| match &report {
        Report::All(all) => picture::of_all(frame, all, &tensors),
        Report::One(one) => picture::of_head(frame, one, &tensors),
    })?;
    outputs.commit_after(|| {
        output::report(args.json, &report, |report| match report {
            Report::All(all) => print::overview(all, args.top.into()),
            Report::One(one) => print::head(one),
        })
    })
}

impl CircuitsArgs {
    fn options(&self) -> Options {
        Options {
            head: self.head.or(self.named).map(HeadName),
            token: self.token.iter().cloned().map(Answer::Text).collect(),
            composition: self.composition.clone(),
            top: self.top.into(),
            // A program gets all, and drops what it does not want.
            seen_only: !(self.json || self.all_tokens),
        }
    }
}
