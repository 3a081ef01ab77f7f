//! The file of a task's examples: on this machine, or of a data set on the Hub.

use crate::hub::HubOptions;
use crate::observer::Observer;
use crate::open::{HubThing, TakenForHub};
use anyhow::{Context, bail};
use gpt2_loader::hub::{MAIN, ModelId};
use std::path::{Path, PathBuf};

/// The branch on which the Hub keeps each data set as Parquet, in files `CONFIG/SPLIT/0000.parquet`.
const CONVERTED: &str = "refs/convert/parquet";
const FIRST_FILE: &str = "0000.parquet";
/// The beginning of the address of a file of a data set.
const ADDRESS: &str = "hf://datasets/";

/// A split of a data set on the Hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HubSplit {
    pub(super) id: &'static str,
    /// `CONFIG/SPLIT`
    pub(super) folder: &'static str,
}

/// A file of examples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DataFile {
    /// On this machine.
    At(PathBuf),
    /// Of a task's own data set.
    Of(HubSplit),
    /// Of a data set with many parts.
    OfSet { id: &'static str, folder: String },
    /// Of any data set.
    On { id: String, revision: String, file: String },
}

/// The parts of `OWNER/NAME[@REVISION]/FILE`.
struct HubAddress<'a> {
    owner: &'a str,
    name: &'a str,
    revision: &'a str,
    file: &'a str,
}

impl<'a> HubAddress<'a> {
    /// Reads an address as the Hub's own clients do: of revisions, only `refs/convert/BRANCH` and `refs/pr/NUMBER` have slashes.
    fn of(address: &'a str) -> Option<Self> {
        let (owner, rest) = address.split_once('/')?;
        let end = rest.find(['/', '@'])?;
        let (name, rest) = rest.split_at(end);
        let Some(rest) = rest.strip_prefix('@') else {
            return Some(Self { owner, name, revision: MAIN, file: rest.strip_prefix('/')? });
        };
        let is_long = rest.starts_with("refs/convert/") || rest.starts_with("refs/pr/");
        let (end, _) = rest.match_indices('/').nth(if is_long { 2 } else { 0 })?;
        Some(Self { owner, name, revision: &rest[..end], file: &rest[end + 1..] })
    }
}

impl DataFile {
    /// A path, or `hf://datasets/OWNER/NAME[@REVISION]/FILE`.
    pub(super) fn named(given: &str) -> anyhow::Result<Self> {
        let Some(address) = given.strip_prefix(ADDRESS) else {
            let path = Path::new(given);
            if !path.is_file() {
                bail!(
                    "{given}: no such file; expected one in JSON lines or Parquet, or {ADDRESS}OWNER/NAME/FILE"
                );
            }
            return Ok(Self::At(path.to_path_buf()));
        };
        let Some(HubAddress { owner, name, revision, file }) = HubAddress::of(address) else {
            bail!("{given}: expected {ADDRESS}OWNER/NAME/FILE, perhaps with @REVISION behind NAME");
        };
        let is_plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\\');
        if !file.split('/').all(is_plain) {
            bail!("{given}: expected the file's path inside the data set, such as data/test.jsonl");
        }
        Ok(Self::On { id: format!("{owner}/{name}"), revision: revision.to_owned(), file: file.to_owned() })
    }

    /// In words, for the report.
    pub(super) fn described(&self) -> String {
        let of = |id: &str, folder: &str| format!("{ADDRESS}{id}@{CONVERTED}/{folder}/{FIRST_FILE}");
        match self {
            Self::At(path) => path.display().to_string(),
            Self::Of(HubSplit { id, folder }) => of(id, folder),
            Self::OfSet { id, folder } => of(id, folder),
            Self::On { id, revision, file } => format!("{ADDRESS}{id}@{revision}/{file}"),
        }
    }

    /// The file, if it is on this machine.
    pub(super) fn local(&self) -> Option<&Path> {
        if let Self::At(path) = self { Some(path) } else { None }
    }

    /// The path of the file, fetched and verified if it is on the Hub.
    pub(super) fn find(&self, hub: &HubOptions, observer: &dyn Observer) -> anyhow::Result<PathBuf> {
        let fetch = |id: &str, revision: &str, file: &str| -> anyhow::Result<PathBuf> {
            let Some(dataset) = ModelId::of_dataset(id) else {
                bail!("{id}: expected OWNER/NAME, a data set on the Hub");
            };
            let opened = hub.connect(observer)?.open_dataset_file(&dataset, revision, file);
            opened.context(TakenForHub { name: id.to_owned(), kind: HubThing::DataSet })
        };
        match self {
            Self::At(path) => Ok(path.clone()),
            Self::Of(HubSplit { id, folder }) => fetch(id, CONVERTED, &format!("{folder}/{FIRST_FILE}")),
            Self::OfSet { id, folder } => fetch(id, CONVERTED, &format!("{folder}/{FIRST_FILE}")),
            Self::On { id, revision, file } => fetch(id, revision, file),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_that_a_report_has_is_read_back() -> anyhow::Result<()> {
        let on = |revision: &str, file: &str| DataFile::On {
            id: "a/b".to_owned(),
            revision: revision.to_owned(),
            file: file.to_owned(),
        };
        let split = DataFile::Of(HubSplit { id: "a/b", folder: "default/test" });
        let set = DataFile::OfSet { id: "a/b", folder: "default/test".to_owned() };
        for (file, read) in [
            (split, on(CONVERTED, "default/test/0000.parquet")),
            (set, on(CONVERTED, "default/test/0000.parquet")),
            (on(MAIN, "data/x.jsonl"), on(MAIN, "data/x.jsonl")),
            (on("v1.0", "x@y.jsonl"), on("v1.0", "x@y.jsonl")),
            (on("refs/pr/7", "data/x.jsonl"), on("refs/pr/7", "data/x.jsonl")),
        ] {
            assert_eq!(DataFile::named(&file.described())?, read, "{}", file.described());
        }
        assert_eq!(DataFile::named("hf://datasets/a/b/x@y.jsonl")?, on(MAIN, "x@y.jsonl"));
        for wrong in ["a/b", "a/b@v1", "a/b@refs/convert/parquet", "a/b@refs/pr/7", "a/b@v1/", "a"] {
            DataFile::named(&format!("{ADDRESS}{wrong}")).expect_err(wrong);
        }
        Ok(())
    }
}
