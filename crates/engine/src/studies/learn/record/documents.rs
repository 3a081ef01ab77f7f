//! The documents that a study reads: those of a corpus, or texts from a program.

use crate::texts::{Corpus, CorpusDocument};
use serde_json::Map;

/// The most texts of a section.
const SECTION: usize = 256;

/// Documents, section by section.
pub enum Documents<'a> {
    /// The documents of a file, a folder or standard input.
    Corpus(Corpus<'a>),
    /// Texts in memory, each a document.
    Texts(TextsInMemory),
}

/// Texts in memory, and how many of their bytes were read.
#[derive(Debug)]
pub struct TextsInMemory {
    waiting: std::vec::IntoIter<String>,
    bytes: u64,
    read: u64,
    documents: usize,
}

impl Documents<'_> {
    /// These texts, each as a document.
    #[must_use]
    pub fn of(texts: Vec<String>) -> Self {
        let bytes = texts.iter().map(|text| text.len() as u64).sum();
        Self::Texts(TextsInMemory { waiting: texts.into_iter(), bytes, read: 0, documents: 0 })
    }

    /// The next documents; none at the end.
    ///
    /// # Errors
    /// When a file cannot be read, or a line holds no text.
    pub fn section(&mut self) -> anyhow::Result<Vec<CorpusDocument>> {
        match self {
            Self::Corpus(corpus) => corpus.section(),
            Self::Texts(texts) => Ok(texts.section()),
        }
    }

    /// The number of bytes read so far.
    #[must_use]
    pub fn read(&self) -> u64 {
        match self {
            Self::Corpus(corpus) => corpus.read(),
            Self::Texts(texts) => texts.read,
        }
    }

    /// The size of all documents, where it is known.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        match self {
            Self::Corpus(corpus) => corpus.bytes,
            Self::Texts(texts) => Some(texts.bytes),
        }
    }
}

impl TextsInMemory {
    fn section(&mut self) -> Vec<CorpusDocument> {
        let texts = self.waiting.by_ref().take(SECTION);
        let document = |text: String| {
            self.read += text.len() as u64;
            let file = format!("text {}", self.documents);
            self.documents += 1;
            CorpusDocument { file, line: None, input: Map::new(), text }
        };
        texts.map(document).collect()
    }
}
