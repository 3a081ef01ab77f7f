//! Explanations of features that others have published: lists or lines of JSON, as Neuronpedia exports them.

use crate::observer::Observer;
use crate::spelling::Spelling;
use crate::texts::open;
use anyhow::{Context, anyhow, bail};
use gpt2_loader::FileKind;
use gpt2_model::hooks::Point;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};

const EXPECTED: &str = "expected a JSON list, or an object a line, with index (or feature) and description, as Neuronpedia exports them";

/// The bytes of a file, at most.
const LARGEST: u64 = 1 << 30;

/// The explanations of each feature, in the order of their files.
pub type ByFeature = BTreeMap<u32, Vec<String>>;

/// Explanations as files have them.
#[derive(Debug)]
pub(in super::super) struct Explanations {
    all: Vec<ExplainedFeature>,
    option: String,
}

#[derive(Debug)]
struct ExplainedFeature {
    /// The file, and the place in it.
    at: String,
    /// The dictionary: Neuronpedia's source, such as `6-res-jb`.
    source: Option<String>,
    feature: u32,
    text: String,
}

/// An entry of a file; other fields have no meaning here.
#[derive(Debug, Deserialize)]
struct Entry {
    index: Option<Value>,
    feature: Option<Value>,
    description: Option<Value>,
    layer: Option<Value>,
    source: Option<Value>,
}

impl Explanations {
    /// Reads the files.
    ///
    /// # Errors
    /// When one cannot be read, or an entry lacks its feature or has something else than a text.
    pub(in super::super) fn read(
        files: &[PathBuf],
        spelling: Spelling,
        observer: &dyn Observer,
    ) -> anyhow::Result<Self> {
        let option = spelling.option("explanations");
        let mut all = vec![];
        for file in files {
            let name = file.display();
            let bytes = contents(file, observer).context(option.clone())?;
            let found = entries(&bytes).map_err(|found| anyhow!("{option}: {name}: {found}"))?;
            for (number, entry) in found.into_iter().enumerate() {
                all.extend(entry.explanation(format!("{option}: {name}, entry {}", number + 1))?);
            }
        }
        Ok(Self { all, option })
    }

    /// The explanations of one dictionary, of the values at `hook`.
    ///
    /// # Errors
    /// When they are of several dictionaries, of another layer, or of a feature that this dictionary lacks.
    pub(super) fn of_dictionary(self, features: usize, hook: Point) -> anyhow::Result<ByFeature> {
        let sources: BTreeSet<&str> = self.all.iter().filter_map(|one| one.source.as_deref()).collect();
        if sources.len() > 1 {
            let names = sources.iter().take(4).copied().collect::<Vec<_>>().join(", ");
            bail!(
                "{}: has explanations of several dictionaries, {names}; give those of this one alone",
                self.option
            );
        }
        let mut found = ByFeature::new();
        for one in self.all {
            one.check(features)?;
            if let (Some(layer), Some(read)) = (one.layer(), hook.layer())
                && layer != read
            {
                bail!(
                    "{}: is of layer {layer}, {:?}, but the dictionary is of {hook}; is it of another dictionary? leave the entry out, \
                     or mend its layer",
                    one.at,
                    one.source.as_deref().unwrap_or_default()
                );
            }
            found.entry(one.feature).or_default().push(one.text);
        }
        Ok(found)
    }

    /// The explanations of a dictionary for each layer, each with its number of features.
    ///
    /// # Errors
    /// When an explanation does not say its layer, is of a layer or feature that is not there, or of another dictionary of its layer
    /// than the one before it.
    pub(in super::super) fn by_layer(self, features: &[usize]) -> anyhow::Result<Vec<ByFeature>> {
        let mut found = vec![ByFeature::new(); features.len()];
        let mut sources: Vec<Option<String>> = vec![None; features.len()];
        for one in self.all {
            let Some(layer) = one.layer().filter(|&layer| layer < features.len()) else {
                bail!(
                    "{}: expected a layer from 0 to {}, alone or before a hyphen as in \"layer\": \"2-mine\", got {:?}; add it, or \
                     leave the entry out",
                    one.at,
                    features.len() - 1,
                    one.source.as_deref().unwrap_or("none")
                );
            };
            one.check(features[layer])?;
            match (&sources[layer], &one.source) {
                (Some(known), Some(source)) if known != source => bail!(
                    "{}: is of {source:?}, but the ones before it are of {known:?}; give those of one dictionary of layer {layer}",
                    one.at
                ),
                _ => sources[layer].clone_from(&one.source),
            }
            found[layer].entry(one.feature).or_default().push(one.text);
        }
        Ok(found)
    }
}

impl ExplainedFeature {
    /// The number before the source's first hyphen.
    fn layer(&self) -> Option<usize> {
        self.source.as_deref()?.split('-').next()?.parse().ok()
    }

    fn check(&self, features: usize) -> anyhow::Result<()> {
        if (self.feature as usize) < features {
            return Ok(());
        }
        bail!(
            "{}: is of feature {}, but the dictionary has features 0 to {}; is it of another dictionary?",
            self.at,
            self.feature,
            features.saturating_sub(1)
        )
    }
}

impl Entry {
    /// The explanation; `None` if its text is empty.
    fn explanation(self, at: String) -> anyhow::Result<Option<ExplainedFeature>> {
        let Self { index, feature, description, layer, source } = self;
        let plain = |value: Value| match value {
            Value::String(text) => Some(text),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        let given = index.or(feature);
        let number = given.clone().and_then(plain).and_then(|text| text.parse::<u32>().ok());
        let Some(feature) = number else {
            let got = given.map_or_else(|| "none".to_owned(), |value| value.to_string());
            bail!(
                "{at}: expected the number of a feature as index, got {got}; mend the entry, or leave it out"
            );
        };
        let text = match description {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text,
            Some(other) => {
                bail!("{at}: expected a text as description, got {other}; mend the entry, or leave it out")
            }
        };
        let source = layer.or(source).and_then(plain);
        let text = text.trim().to_owned();
        Ok((!text.is_empty()).then_some(ExplainedFeature { at, source, feature, text }))
    }
}

fn contents(file: &Path, observer: &dyn Observer) -> anyhow::Result<Vec<u8>> {
    let mut bytes = vec![];
    let named = || format!("cannot read {}", file.display());
    open(file, observer)?.take(LARGEST + 1).read_to_end(&mut bytes).with_context(named)?;
    if bytes.len() as u64 > LARGEST {
        bail!(
            "{}: is larger than 1 GiB; give a file for each dictionary, or leave out its embeddings",
            file.display()
        );
    }
    Ok(bytes)
}

/// The entries of a file.
fn entries(bytes: &[u8]) -> Result<Vec<Entry>, String> {
    if FileKind::of(bytes) == Some(FileKind::Gzip) {
        return Err("is a gzip archive; unpack it with gunzip first".to_owned());
    }
    let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
    let is_list = bytes.trim_ascii_start().starts_with(b"[");
    let found: serde_json::Result<Vec<Entry>> = if is_list {
        serde_json::from_slice(bytes)
    } else {
        serde_json::Deserializer::from_slice(bytes).into_iter().collect()
    };
    match found {
        Ok(entries) if entries.is_empty() => Err(format!("holds no explanation; {EXPECTED}")),
        Ok(entries) => Ok(entries),
        Err(error) => Err(format!("{EXPECTED}: {error}; mend the file, or leave it out")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observer::Silent;

    fn read(content: impl AsRef<[u8]>) -> anyhow::Result<Explanations> {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), content)?;
        Explanations::read(&[file.path().to_path_buf()], Spelling::Flags, &Silent)
    }

    fn refused<T: std::fmt::Debug>(result: anyhow::Result<T>, says: &[&str]) {
        let error = format!("{:#}", result.expect_err("something wrong"));
        assert!(says.iter().all(|part| error.contains(part)), "{error}: {says:?}");
    }

    #[test]
    fn lists_and_lines_have_numbers_as_numbers_or_texts() -> anyhow::Result<()> {
        let list = r#"[{"modelId": "m", "layer": "2-x", "index": "3", "description": " says thou ", "embedding": [1]}, {"index": 3, "description": "again"}, {"feature": 0, "description": null}]"#;
        let expected = ByFeature::from([(3, vec!["says thou".to_owned(), "again".to_owned()])]);
        let hook = Point::ResidPre(2);
        assert_eq!(read(list)?.of_dictionary(4, hook)?, expected);
        let lines = "\u{feff}{\"index\": \"3\", \"description\": \"says thou\"}\n\n{\"feature\": 3, \"description\": \"again\"}\r\n";
        assert_eq!(read(lines)?.of_dictionary(4, hook)?, expected);
        let layers = r#"[{"layer": "1-x", "index": 0, "description": "a"}, {"layer": 0, "index": 0, "description": "b"}]"#;
        let found = read(layers)?.by_layer(&[1, 1])?;
        assert_eq!((&found[0][&0][0], &found[1][&0][0]), (&"b".to_owned(), &"a".to_owned()));
        Ok(())
    }

    #[test]
    fn what_is_wrong_is_named_with_its_file_and_entry() -> anyhow::Result<()> {
        refused(read(""), &["--explanations", "holds no explanation", "expected a JSON list"]);
        refused(read("hello"), &["expected a JSON list", "line 1 column 1", "mend the file"]);
        refused(read("[1]"), &["invalid type"]);
        refused(read(b"\x1f\x8b\x08"), &["is a gzip archive", "gunzip"]);
        refused(
            read(r#"[{"index": 1}, {"description": "x"}]"#),
            &["entry 2", "number of a feature as index, got none"],
        );
        refused(read(r#"[{"index": -1, "description": "x"}]"#), &["got -1"]);
        refused(read(r#"[{"index": 1, "description": 5}]"#), &["a text as description, got 5"]);
        let two = r#"[{"layer": "1-x", "index": 5, "description": "a"}, {"layer": "0-x", "index": 0, "description": "b"}]"#;
        refused(read(two)?.of_dictionary(8, Point::Embed), &["several dictionaries, 0-x, 1-x"]);
        let other = r#"[{"layer": "8-x", "index": 0, "description": "a"}]"#;
        refused(
            read(other)?.of_dictionary(8, Point::ResidPre(6)),
            &["entry 1", "of layer 8", "8-x", "blocks.6.hook_resid_pre"],
        );
        let both = r#"[{"layer": "0-x", "index": 0, "description": "a"}, {"layer": "0-y", "index": 0, "description": "b"}]"#;
        refused(read(both)?.by_layer(&[1]), &["entry 2", "0-y", "0-x", "of layer 0"]);
        refused(read(two)?.by_layer(&[8]), &["entry 1", "a layer from 0 to 0", "1-x"]);
        refused(read(two)?.by_layer(&[1, 1]), &["feature 5", "0 to 0", "another dictionary"]);
        Ok(())
    }
}
