//! The supported parts around the BPE: all that byte-level models of GPT-2's family use.
//!
//! Each is read into its own type, checked, and then passed to the crate tokenizers; nothing else in a
//! file reaches that crate.

use super::vocab::{check_id, check_token};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;

/// Parts of a sequence.
const MOST_PARTS: usize = 8;
/// Pieces of a template.
const MOST_PIECES: usize = 16;
/// Bytes of a literal that splits text.
const LONGEST_LITERAL: usize = 64;

/// The patterns that split text in models of the family: GPT-2's, and those of later byte-level models. With any
/// other, some text may take endless time or memory.
const PATTERNS: [&str; 4] = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"\p{N}{1,3}",
];

/// The part as the crate tokenizers' own type.
pub(super) fn handed_on<W: DeserializeOwned>(part: &impl Serialize) -> Result<W, String> {
    serde_json::to_value(part).and_then(serde_json::from_value).map_err(|e| e.to_string())
}

/// Refuses parts that nest, and more of them than any tokenizer has.
fn check_flat<T>(what: &str, parts: &[T], is_sequence: impl Fn(&T) -> bool) -> Result<(), String> {
    if parts.iter().any(is_sequence) {
        return Err(format!("{what}: a Sequence in a Sequence; expected its parts in one"));
    }
    if parts.len() > MOST_PARTS {
        return Err(format!("{what}: {} parts; expected at most {MOST_PARTS}", parts.len()));
    }
    Ok(())
}

/// Changes to the text before it is split.
#[derive(Serialize, Deserialize)]
#[serde(tag = "type")]
#[allow(clippy::upper_case_acronyms)]
pub(super) enum Normalizer {
    NFC,
    NFD,
    NFKC,
    NFKD,
    Lowercase,
    StripAccents,
    Sequence { normalizers: Vec<Normalizer> },
}

impl Normalizer {
    fn parts(&self) -> &[Self] {
        match self {
            Self::Sequence { normalizers } => normalizers,
            part => std::slice::from_ref(part),
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        check_flat("normalizer", self.parts(), |part| matches!(part, Self::Sequence { .. }))
    }

    /// The largest factor by which it lengthens a text, in bytes (U+FDFA has 3 bytes, and 33 in NFKD).
    pub(super) fn growth(&self) -> usize {
        let form = |part: &Self| match part {
            Self::NFKC | Self::NFKD => 12,
            Self::NFC | Self::NFD => 3,
            _ => 1,
        };
        let lowercase = self.parts().iter().any(|part| matches!(part, Self::Lowercase));
        self.parts().iter().map(form).max().unwrap_or(1) * if lowercase { 2 } else { 1 }
    }
}

/// The treatment of the delimiters at which text is split.
#[derive(Default, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) enum Behavior {
    Removed,
    #[default]
    Isolated,
    MergedWithPrevious,
    MergedWithNext,
    Contiguous,
}

/// The delimiter at which text is split.
#[derive(Serialize, Deserialize)]
pub(super) enum Pattern {
    String(String),
    Regex(String),
}

/// The bytes as letters.
#[derive(Serialize, Deserialize)]
pub(super) struct ByteLevel {
    add_prefix_space: bool,
    trim_offsets: bool,
    #[serde(default = "yes")]
    use_regex: bool,
}

fn yes() -> bool {
    true
}

impl ByteLevel {
    pub(super) fn new(add_prefix_space: bool, trim_offsets: bool) -> Self {
        Self { add_prefix_space, trim_offsets, use_regex: true }
    }
}

/// A step that splits the text into words.
#[derive(Serialize, Deserialize)]
#[serde(tag = "type")]
pub(super) enum PreTokenizer {
    ByteLevel(ByteLevel),
    Whitespace,
    WhitespaceSplit,
    Digits {
        individual_digits: bool,
    },
    Punctuation {
        #[serde(default)]
        behavior: Behavior,
    },
    Split {
        pattern: Pattern,
        behavior: Behavior,
        invert: bool,
    },
    Sequence {
        pretokenizers: Vec<PreTokenizer>,
    },
}

impl PreTokenizer {
    fn parts(&self) -> &[Self] {
        match self {
            Self::Sequence { pretokenizers } => pretokenizers,
            part => std::slice::from_ref(part),
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let parts = self.parts();
        check_flat("pre_tokenizer", parts, |part| matches!(part, Self::Sequence { .. }))?;
        // A second one would encode the letters of the first one again.
        if parts.iter().filter(|part| matches!(part, Self::ByteLevel(_))).count() > 1 {
            return Err("pre_tokenizer: more than one ByteLevel; expected one".into());
        }
        for part in parts {
            match part {
                Self::Split { pattern: Pattern::String(literal), .. }
                    if literal.is_empty() || literal.len() > LONGEST_LITERAL =>
                {
                    return Err(format!(
                        "pre_tokenizer: Split at a text of {} bytes; expected 1 to {LONGEST_LITERAL}",
                        literal.len()
                    ));
                }
                Self::Split { pattern: Pattern::Regex(regex), .. } if !PATTERNS.contains(&regex.as_str()) => {
                    let start: String = regex.chars().take(60).collect();
                    return Err(format!(
                        "pre_tokenizer: Split at the pattern {start:?}, which is not supported; expected GPT-2's \
                         pattern or that of another byte-level model that is known here"
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether a space is put in front, if it is GPT-2's way to split text but for that.
    pub(super) fn gpt2s(&self) -> Option<bool> {
        match self {
            Self::ByteLevel(ByteLevel { add_prefix_space, use_regex: true, .. }) => Some(*add_prefix_space),
            _ => None,
        }
    }

    /// Whether the words are bytes as letters.
    pub(super) fn is_byte_level(&self) -> bool {
        self.parts().iter().any(|part| matches!(part, Self::ByteLevel(_)))
    }

    /// Whether parts of the text are left out.
    pub(super) fn removes(&self) -> bool {
        self.parts().iter().any(|part| match part {
            Self::Whitespace | Self::WhitespaceSplit => true,
            Self::Punctuation { behavior } | Self::Split { behavior, .. } => *behavior == Behavior::Removed,
            Self::ByteLevel(_) | Self::Digits { .. } | Self::Sequence { .. } => false,
        })
    }
}

/// A place in a template.
#[derive(Serialize, Deserialize)]
pub(super) enum Piece {
    Sequence { id: SequenceId, type_id: u32 },
    SpecialToken { id: String, type_id: u32 },
}

/// The first or the second text.
#[derive(PartialEq, Serialize, Deserialize)]
pub(super) enum SequenceId {
    A,
    B,
}

/// A template's name for a special token.
#[derive(Serialize, Deserialize)]
pub(super) struct SpecialToken {
    id: String,
    ids: Vec<u32>,
    tokens: Vec<String>,
}

/// Tokens to put around the ids.
#[derive(Serialize, Deserialize)]
#[serde(tag = "type")]
pub(super) enum PostProcessor {
    ByteLevel(ByteLevel),
    TemplateProcessing {
        single: Vec<Piece>,
        pair: Vec<Piece>,
        special_tokens: BTreeMap<String, SpecialToken>,
    },
    Sequence {
        processors: Vec<PostProcessor>,
    },
}

impl PostProcessor {
    /// Puts tokens, each with its id, around a text.
    pub(super) fn around(bos: Option<(String, u32)>, eos: Option<(String, u32)>) -> Self {
        if bos.is_none() && eos.is_none() {
            return Self::ByteLevel(ByteLevel::new(false, false));
        }
        let around = |id, type_id| {
            let of = |token: &Option<(String, u32)>| {
                token.as_ref().map(|(content, _)| Piece::SpecialToken { id: content.clone(), type_id })
            };
            of(&bos).into_iter().chain([Piece::Sequence { id, type_id }]).chain(of(&eos)).collect::<Vec<_>>()
        };
        let single = around(SequenceId::A, 0);
        let pair = around(SequenceId::A, 0).into_iter().chain(around(SequenceId::B, 1)).collect();
        let special_tokens = [&bos, &eos].into_iter().flatten().map(|(content, id)| {
            let token = SpecialToken { id: content.clone(), ids: vec![*id], tokens: vec![content.clone()] };
            (content.clone(), token)
        });
        Self::TemplateProcessing { single, pair, special_tokens: special_tokens.collect() }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let parts = match self {
            Self::Sequence { processors } => processors.as_slice(),
            part => std::slice::from_ref(part),
        };
        check_flat("post_processor", parts, |part| matches!(part, Self::Sequence { .. }))?;
        // A second template would receive several texts, for which it has no place.
        if parts.iter().filter(|part| matches!(part, Self::TemplateProcessing { .. })).count() > 1 {
            return Err("post_processor: more than one TemplateProcessing; expected one".into());
        }
        for part in parts {
            if let Self::TemplateProcessing { single, pair, special_tokens } = part {
                check_template(single, pair, special_tokens)
                    .map_err(|reason| format!("post_processor: TemplateProcessing: {reason}"))?;
            }
        }
        Ok(())
    }
}

fn check_template(
    single: &[Piece],
    pair: &[Piece],
    special_tokens: &BTreeMap<String, SpecialToken>,
) -> Result<(), String> {
    let texts: Vec<&SequenceId> = single
        .iter()
        .filter_map(|piece| match piece {
            Piece::Sequence { id, .. } => Some(id),
            Piece::SpecialToken { .. } => None,
        })
        .collect();
    if texts != [&SequenceId::A] {
        return Err("single: expected the text A once and no other".into());
    }
    if single.len().max(pair.len()) > MOST_PIECES {
        return Err(format!("more than {MOST_PIECES} pieces"));
    }
    for piece in single.iter().chain(pair) {
        if let Piece::SpecialToken { id, .. } = piece
            && !special_tokens.contains_key(id)
        {
            return Err(format!("{id:?} is not among its special_tokens"));
        }
    }
    for (name, token) in special_tokens {
        if token.ids.is_empty() || token.ids.len() > MOST_PIECES || token.ids.len() != token.tokens.len() {
            return Err(format!(
                "special token {name:?} has {} ids and {} tokens; expected as many ids as tokens, 1 to {MOST_PIECES}",
                token.ids.len(),
                token.tokens.len()
            ));
        }
        token.ids.iter().try_for_each(|&id| check_id(id))?;
        token.tokens.iter().try_for_each(|token| check_token(token))?;
    }
    Ok(())
}

/// The decoder that turns tokens into text.
#[derive(Serialize, Deserialize)]
#[serde(tag = "type")]
pub(super) enum Decoder {
    ByteLevel(ByteLevel),
    ByteFallback,
    Fuse,
    Sequence { decoders: Vec<Decoder> },
}

impl Decoder {
    pub(super) fn check(&self) -> Result<(), String> {
        match self {
            Self::Sequence { decoders } => {
                check_flat("decoder", decoders, |part| matches!(part, Self::Sequence { .. }))
            }
            _ => Ok(()),
        }
    }
}
