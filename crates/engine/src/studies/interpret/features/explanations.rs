//! Explanations of features that others have published: lists or lines of JSON, as Neuronpedia exports them.

use crate::observer::Observer;
use crate::spelling::Spelling;
use crate::texts::open;
use anyhow::{Context, anyhow, bail};
use gpt2_loader::FileKind;
use gpt2_model::hooks::Point;
use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
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
    index: Option<Field>,
    feature: Option<Field>,
    description: Option<Field>,
    layer: Option<Field>,
    source: Option<Field>,
}

/// A field of an entry. Lists and objects have no meaning here, however large they are, and are not kept.
#[derive(Debug)]
enum Field {
    Text(String),
    Number(String),
    Other(&'static str),
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
            let mut number = 0;
            let mut refused = None;
            let found = entries(&bytes, &mut |entry| {
                number += 1;
                let explained = entry.explanation(format!("{option}: {name}, entry {number}"));
                explained.map(|one| all.extend(one)).map_err(|error| refused = Some(error)).is_ok()
            });
            if let Some(error) = refused {
                return Err(error);
            }
            found.map_err(|found| anyhow!("{option}: {name}: {found}"))?;
            if number == 0 {
                bail!("{option}: {name}: holds no explanation; {EXPECTED}");
            }
        }
        Ok(Self { all, option })
    }

    /// The explanations of one dictionary, of the values at `hook`.
    ///
    /// # Errors
    /// When they are of several dictionaries, of another layer, or of a feature that this dictionary lacks.
    pub(super) fn of_dictionary(self, features: usize, hook: Point) -> anyhow::Result<ByFeature> {
        let sources: BTreeSet<&str> = self.all.iter().filter_map(ExplainedFeature::dictionary).collect();
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
                // The stream behind a block is the one before the next: Neuronpedia's 12-res-jb is of blocks.11.hook_resid_post.
                && !(matches!(hook, Point::ResidPost(_)) && layer == read + 1)
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
            if let Some(source) = one.dictionary() {
                let known = sources[layer].get_or_insert_with(|| source.to_owned());
                if known != source {
                    bail!(
                        "{}: is of {source:?}, but the ones before it are of {known:?}; give those of one dictionary of layer {layer}",
                        one.at
                    );
                }
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

    /// The source, if it is more than a layer.
    fn dictionary(&self) -> Option<&str> {
        self.source.as_deref().filter(|source| source.parse::<usize>().is_err())
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
        let given = index.or(feature);
        let number = given.as_ref().and_then(Field::plain).and_then(|text| text.parse::<u32>().ok());
        let Some(feature) = number else {
            let got = given.map_or_else(|| "none".to_owned(), |value| value.to_string());
            bail!(
                "{at}: expected the number of a feature as index, got {got}; mend the entry, or leave it out"
            );
        };
        let text = match description {
            None => String::new(),
            Some(Field::Text(text)) => text,
            Some(other) => {
                bail!("{at}: expected a text as description, got {other}; mend the entry, or leave it out")
            }
        };
        let source = layer.or(source).as_ref().and_then(Field::plain).map(str::to_owned);
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

/// Hands on the entries of a file one by one, until `take` has had enough.
fn entries(bytes: &[u8], take: &mut dyn FnMut(Entry) -> bool) -> Result<(), String> {
    if FileKind::of(bytes) == Some(FileKind::Gzip) {
        return Err("is a gzip archive; unpack it with gunzip first".to_owned());
    }
    let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let read = if bytes.trim_ascii_start().starts_with(b"[") {
        json.deserialize_seq(List(take)).and_then(|()| json.end())
    } else {
        json.into_iter::<Entry>().try_for_each(|entry| {
            if take(entry?) { Ok(()) } else { Err(serde_json::Error::custom("an entry is refused")) }
        })
    };
    read.map_err(|error| format!("{EXPECTED}: {error}; mend the file, or leave it out"))
}

/// Takes the entries of a list, so that only those that are wanted are kept.
struct List<'a>(&'a mut dyn FnMut(Entry) -> bool);

impl<'de> Visitor<'de> for List<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(entry) = list.next_element()? {
            if !(self.0)(entry) {
                return Err(A::Error::custom("an entry is refused"));
            }
        }
        Ok(())
    }
}

impl Field {
    /// A text, or a number as a text.
    fn plain(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Number(text) => Some(text),
            Self::Other(_) => None,
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "{:?}", text.chars().take(40).collect::<String>()),
            Self::Number(number) => f.write_str(number),
            Self::Other(kind) => f.write_str(kind),
        }
    }
}

impl<'de> Deserialize<'de> for Field {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyField)
    }
}

struct AnyField;

impl<'de> Visitor<'de> for AnyField {
    type Value = Field;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a text or a number")
    }

    fn visit_str<E>(self, text: &str) -> Result<Field, E> {
        Ok(Field::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Field, E> {
        Ok(Field::Text(text))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Field, E> {
        Ok(Field::Number(number.to_string()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Field, E> {
        Ok(Field::Number(number.to_string()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Field, E> {
        Ok(Field::Number(number.to_string()))
    }

    fn visit_bool<E>(self, is: bool) -> Result<Field, E> {
        Ok(Field::Other(if is { "true" } else { "false" }))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Field, A::Error> {
        IgnoredAny::deserialize(SeqAccessDeserializer::new(list)).map(|IgnoredAny| Field::Other("a list"))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Field, A::Error> {
        IgnoredAny::deserialize(MapAccessDeserializer::new(map)).map(|IgnoredAny| Field::Other("an object"))
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
        // A layer by itself names no dictionary.
        let own = r#"[{"layer": "0-x", "index": 0, "description": "a"}, {"layer": 0, "index": 0, "description": "b"}, {"layer": "0-x", "index": 0, "description": "c"}]"#;
        assert_eq!(read(own)?.by_layer(&[1])?[0][&0], ["a", "b", "c"]);
        assert_eq!(read(own)?.of_dictionary(1, Point::ResidPre(0))?[&0], ["a", "b", "c"]);
        // Neuronpedia's name for the stream behind the last block of GPT-2 small.
        let last = r#"[{"layer": "12-res-jb", "index": 0, "description": "a"}]"#;
        assert_eq!(read(last)?.of_dictionary(1, Point::ResidPost(11))?[&0], ["a"]);
        refused(read(last)?.of_dictionary(1, Point::ResidPost(10)), &["of layer 12"]);
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
        refused(read(r#"[{"index": [1, {}], "description": "x"}]"#), &["entry 1", "got a list"]);
        refused(read("{\"index\": 1}\n{\"index\": true}\n"), &["entry 2", "got true"]);
        refused(
            read(r#"[{"index": 1, "description": "x"}] more"#),
            &["trailing characters", "mend the file"],
        );
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
