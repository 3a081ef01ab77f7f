//! The texts over which means are taken.

use super::checks::Reads;
use super::options::MeanTexts;
use super::sources::MeanSource;
use crate::observer::Observer;
use crate::open::Opened;
use crate::texts::{Content, read_file, tokens_within};
use crate::words::count;
use anyhow::bail;
use gpt2_model::MeanOver;
use gpt2_model::hooks::Interventions;
use std::path::PathBuf;
use std::sync::OnceLock;

/// The longest file of texts, in bytes.
const LONGEST: u64 = 1 << 24;

/// Texts over which means are taken, and the interventions with these means.
#[derive(Debug)]
pub(super) struct MeanTokens {
    file: Option<PathBuf>,
    pub(super) texts: Vec<Vec<u32>>,
    /// The common number of tokens of the texts; `None` if they differ in length, or if only a circuit uses the means.
    pub(super) length: Option<usize>,
    each_position: OnceLock<Interventions>,
    all_positions: OnceLock<Interventions>,
}

impl MeanTokens {
    /// Reads the texts: those given, or those of a file, one a line.
    pub(super) fn read(opened: &Opened, texts: &MeanTexts, observer: &dyn Observer) -> anyhow::Result<Self> {
        let option = opened.spelling.option("mean-of");
        let mut all = vec![];
        let file = match texts {
            MeanTexts::These(these) => {
                for (i, content) in these.iter().enumerate() {
                    all.push(tokens_within(opened, content, &format!("{option}, text {i}"), observer)?);
                }
                None
            }
            MeanTexts::File(path) => {
                let text = read_file(&format!("the texts of {option}"), path, LONGEST, observer)?;
                for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
                    let place = format!("{}: line {}", path.display(), i + 1);
                    all.push(tokens_within(opened, &Content::from(line), &place, observer)?);
                }
                if all.is_empty() {
                    bail!("{}: holds no text; write one a line", path.display());
                }
                Some(path.clone())
            }
        };
        let Some(first) = all.first().map(Vec::len) else { bail!("{option}: holds no text") };
        let length = Some(first).filter(|t| all.iter().all(|ids| ids.len() == *t));
        let each_position = OnceLock::new();
        let all_positions = OnceLock::new();
        Ok(Self { file, texts: all, length, each_position, all_positions })
    }

    /// Whether a run over these texts takes a mean for each position.
    pub(super) fn by_position(&self, reads: Reads) -> bool {
        let whole = matches!(reads, Reads::Whole(_) | Reads::Branches(_));
        whole && self.length.is_some() && self.length == reads.length()
    }

    /// The interventions with their means.
    pub(super) fn fixed(
        &self,
        plain: &Interventions,
        opened: &Opened,
        by_position: bool,
    ) -> anyhow::Result<&Interventions> {
        let (cell, over) = if by_position {
            (&self.each_position, MeanOver::EachPosition)
        } else {
            (&self.all_positions, MeanOver::AllPositions)
        };
        if let Some(fixed) = cell.get() {
            return Ok(fixed);
        }
        let tensors =
            self.texts.iter().map(|ids| opened.input_ids(ids)).collect::<anyhow::Result<Vec<_>>>()?;
        let fixed = plain.clone().with_means_over(&opened.model, &tensors, over)?;
        Ok(cell.get_or_init(|| fixed))
    }

    /// The scope of the means, for one run.
    pub(super) fn described(&self, by_position: bool) -> String {
        let positions = if by_position { "each position" } else { "all positions" };
        format!("{positions} of {}", count(self.texts.len(), "text"))
    }

    /// The scope of the means, for runs over texts of any length.
    pub(super) fn described_for_all(&self) -> String {
        let number = count(self.texts.len(), "text");
        match self.length {
            Some(t) => format!("{number}, by position in texts of {}", count(t, "token")),
            None => format!("all positions of {number}"),
        }
    }

    /// The record of the texts.
    pub(super) fn source(&self, by_position: Option<bool>) -> MeanSource {
        MeanSource { file: self.file.clone(), texts: self.texts.len(), by_position }
    }
}
