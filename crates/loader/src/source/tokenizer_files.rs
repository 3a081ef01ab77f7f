//! The files of a tokenizer among those of a folder.

use crate::error::LoadError;
use crate::files::{TOKENIZER, TokenizerFiles, VOCABULARIES, is_foreign};
use crate::stored::bytes::Bytes;
use std::path::{Path, PathBuf};

/// The names of what is in a folder, in order.
pub(super) fn names_in(dir: &Path) -> Result<Vec<String>, LoadError> {
    let entries = std::fs::read_dir(dir).map_err(LoadError::io(dir))?;
    let mut names: Vec<String> = entries.flatten().filter_map(|entry| name_of(&entry.path())).collect();
    names.sort_unstable();
    Ok(names)
}

pub(super) fn name_of(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_str()?.to_string())
}

/// The files of the tokenizer in a folder that has files of these names.
pub(super) fn choose_tokenizer(
    dir: &Path,
    names: &[String],
    has: &impl Fn(&str) -> bool,
    file: &impl Fn(&str) -> Result<(PathBuf, Bytes), LoadError>,
) -> Result<TokenizerFiles, LoadError> {
    let pair = VOCABULARIES.into_iter().find(|(vocab, merges)| has(vocab) && has(merges));
    let half = VOCABULARIES.into_iter().find(|(vocab, merges)| has(vocab) || has(merges));
    let foreign = names.iter().find(|name| is_foreign(name));
    Ok(match (pair, half, foreign) {
        _ if has(TOKENIZER) => {
            let (path, bytes) = file(TOKENIZER)?;
            TokenizerFiles::Json(path, bytes)
        }
        (Some((vocab, merges)), ..) => {
            TokenizerFiles::VocabMerges { vocab: file(vocab)?, merges: file(merges)? }
        }
        (None, Some((vocab, merges)), _) => {
            let missing = if has(vocab) { merges } else { vocab };
            return Err(LoadError::HalfTokenizer { dir: dir.to_path_buf(), missing });
        }
        (None, None, Some(name)) => TokenizerFiles::Foreign(dir.join(name)),
        (None, None, None) => TokenizerFiles::Absent,
    })
}
