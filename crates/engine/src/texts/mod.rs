//! Texts as a model reads them: prompts, lines, corpora, pairs, and what a model makes of them.

mod continuation;
mod corpus;
mod encoded;
mod ids_file;
mod known;
mod pair_inputs;
mod pairs;
mod point_values;
mod prompt;
mod read;
mod tasks;
mod text_lines;
mod training;
mod windows;

pub use continuation::{Continuation, new_tokens};
pub use corpus::{By, Corpus, CorpusDocument, DocumentOptions, DocumentUnit, folder_text, shared};
pub use encoded::{Encoded, encode, encode_within};
pub use ids_file::read_ids;
pub use known::{KNOWN_TEXTS, KnownText};
pub use pair_inputs::{Answer, Answers, PairInput, PairsInput};
pub use pairs::{AnswerSides, pair};
pub use point_values::{Windowing, values};
pub use prompt::{Content, Prompt, noted, single_token, tokens_within};
pub use read::{LONGEST_PROMPT, open_text, read_file, read_limited, refuse_device};
pub use tasks::{TASKS, Task};
pub use text_lines::{
    FIELD, LONGEST, STDIN, TextLine, TextLines, holds_fields, is_json_lines, open, parse, place,
};
pub use training::{Example, NewModelSize, documents};
pub use windows::{DocumentWindow, batches, windows};
