//! A model in several GGUF files, as `llama-gguf-split` writes them: `NAME-00001-of-00003.gguf` and so on. The first holds the keys.

use super::gguf::FORMAT;
use super::gguf_header::Header;
use crate::error::LoadError;
use crate::stored::bytes::Bytes;
use std::path::{Path, PathBuf};

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const JOIN: &str = "or join them with `llama-gguf-split --merge`";

/// The names of all parts, in order, of the model that the file with this name is a part of; only the name itself for a file
/// that is no part.
pub(crate) fn names(name: &str) -> Vec<String> {
    let (folder, file) =
        name.rsplit_once('/').map_or(("", name), |(folder, _)| name.split_at(folder.len() + 1));
    match count_by_name(file) {
        Some((stem, count)) => {
            (1..=count).map(|n| format!("{folder}{stem}-{n:05}-of-{count:05}.gguf")).collect()
        }
        None => vec![name.to_string()],
    }
}

/// The text before the numbers of `STEM-00002-of-00003.gguf`, and the number of parts.
fn count_by_name(file: &str) -> Option<(&str, usize)> {
    let (rest, count) = file.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let five = |digits: &str| digits.len() == 5 && digits.bytes().all(|digit| digit.is_ascii_digit());
    let count = Some(count).filter(|count| five(count) && five(number))?.parse().ok()?;
    let number: usize = number.parse().ok()?;
    (1..=count).contains(&number).then_some((stem, count))
}

/// Every part of the model that `bytes`, the file at `path`, is a part of; only itself if it is a whole model.
pub(crate) fn open(path: &Path, bytes: Bytes) -> Result<Vec<(PathBuf, Bytes)>, LoadError> {
    let (number, count) = place(path, &bytes)?;
    if count <= 1 {
        return Ok(vec![(path.to_path_buf(), bytes)]);
    }
    let unread = |reason: String| LoadError::Unread { path: path.to_path_buf(), reason };
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let names = names(&file);
    if names.len() != count || names.get(number).is_none_or(|name| *name != file) {
        return Err(unread(format!(
            "is part {} of {count} of a model, and the others are found by names that end in -{:05}-of-{count:05}.gguf; rename it, \
             {JOIN}",
            number + 1,
            number + 1
        )));
    }
    let mut parts = vec![];
    for (n, name) in names.iter().enumerate() {
        let part = path.with_file_name(name);
        if n == number {
            parts.push((part, bytes.clone()));
            continue;
        }
        if part.symlink_metadata().is_err() {
            return Err(unread(format!(
                "is part {} of {count} of a model, and part {}, {name}, is not beside it; put all parts into one folder, {JOIN}",
                number + 1,
                n + 1
            )));
        }
        let content = Bytes::open(&part)?;
        if place(&part, &content)? != (n, count) {
            let reason = format!("its {NUMBER} and {COUNT} are not those of part {} of {count}", n + 1);
            return Err(LoadError::damaged(&part, FORMAT, &content, reason));
        }
        parts.push((part, content));
    }
    Ok(parts)
}

/// Refuses a part of a model, for a place where no other files are.
pub(crate) fn check_whole(path: &Path, bytes: &Bytes) -> Result<(), LoadError> {
    match place(path, bytes)? {
        (_, 0 | 1) => Ok(()),
        (number, count) => Err(LoadError::Unread {
            path: path.to_path_buf(),
            reason: format!(
                "is part {} of {count} of a model, and parts are read from a folder on disk only; join them with `llama-gguf-split \
                 --merge`",
                number + 1
            ),
        }),
    }
}

/// The number of this part, from 0, and of all parts.
fn place(path: &Path, bytes: &Bytes) -> Result<(usize, usize), LoadError> {
    let header = Header::parse(bytes).map_err(|refusal| LoadError::refused(path, FORMAT, bytes, refusal))?;
    let count = |key| header.count(key).map_err(|reason| LoadError::damaged(path, FORMAT, bytes, reason));
    Ok((count(NUMBER)?.unwrap_or(0), count(COUNT)?.unwrap_or(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_file_are_known_by_its_name() {
        let three = ["q/a-1-00001-of-00003.gguf", "q/a-1-00002-of-00003.gguf", "q/a-1-00003-of-00003.gguf"];
        for name in three {
            assert_eq!(names(name), three);
        }
        for whole in ["a.gguf", "a-00004-of-00003.gguf", "a-1-of-3.gguf", "a-00001-of-00003.bin", "-of-.gguf"]
        {
            assert_eq!(names(whole), [whole]);
        }
    }
}
