//! `gpt2 patch`: which parts of the model carry the difference between two prompts, or between the prompts of many pairs.

mod args;
mod many;
mod one;

use crate::output;
use crate::output::written_files::Outputs;
use crate::results::picture::PictureMetadata;
pub(crate) use args::PatchArgs;
use gpt2_engine::studies::interpret::patch::{Options, Report};
use gpt2_view::Frame;
use serde_json::json;

pub(crate) fn run(args: &PatchArgs) -> anyhow::Result<()> {
    args.study.check::<Options>()?;
    let mut outputs = Outputs::new(args.overwrite);
    args.picture.add(&mut outputs)?;
    let opened = args.study.open_for(args.pairs.inputs(), &outputs)?;
    let report = args.study.outcome(&opened, &args.options(), false)?.report;
    let about = match &report {
        Report::One(one) => {
            let [answer, against] = one::answers(one);
            let of = one.metric.clone().unwrap_or_else(|| format!("{answer} against {against}"));
            PictureMetadata {
                title: format!("{}: patching, {of}", opened.title()),
                made_by: &one.provenance,
                settings: json!({ "answer": one.answer, "against": one.against, "metric": one.metric }),
            }
        }
        Report::Many(many) => PictureMetadata {
            title: format!("{}: patching over {} pairs", opened.title(), many.pairs),
            made_by: &many.provenance,
            settings: many.settings.clone(),
        },
    };
    args.picture.draw(&mut outputs, &about, |frame: &Frame| match &report {
        Report::One(one) => one::picture(frame, one, &opened.shown(&one.provenance.ids)),
        Report::Many(many) => many::picture(frame, many),
    })?;
    outputs.commit_after(|| {
        output::report(args.study.json, &report, |report| match report {
            Report::One(one) => one::print(one, args.all),
            Report::Many(many) => many::print(many, args.all),
        })
    })
}
