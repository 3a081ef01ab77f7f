//! A model, an adapter or a dictionary by the name that a user gives. What exists on disk is never looked up elsewhere.

use super::address::{OnHub, address};
use anyhow::{Context, bail};
use gpt2_loader::hub::MAIN;
use gpt2_loader::{FileKind, ModelId};
use std::path::{Path, PathBuf};

/// The name of the built-in demo model, which is no path.
pub const DEMO_NAME: &str = "demo";

/// The model that a name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Named {
    /// A folder as transformers writes it, which may not be there.
    Folder(PathBuf),
    /// A GGUF file.
    Gguf(PathBuf),
    /// Another file of weights, with the config that it holds or that lies beside it.
    File(PathBuf),
    /// A model on the Hub, and the revision that its address names.
    Hub(ModelId, Option<String>),
    /// A GGUF file of a model on the Hub.
    HubGguf(ModelId, Option<String>, String),
}

impl Named {
    /// A folder or a file of weights if one of that name exists, otherwise a model on the Hub if it can be its name or its address.
    ///
    /// # Errors
    /// When there is a file of that name that is no model, or it is the address of something else.
    pub fn find(text: &str) -> anyhow::Result<Self> {
        match place(text)? {
            Place::Folder(folder) => Ok(Self::Folder(folder)),
            Place::File(path, of) => {
                // One that is damaged is for its reader to tell.
                if of == Some(FileKind::Gguf) || is_gguf(&path) {
                    return Ok(Self::Gguf(path));
                }
                if of.as_ref().is_some_and(holds_weights) || has_name_of_weights(&path) {
                    return Ok(Self::File(path));
                }
                // Beside this program, `gpt2` still is GPT-2.
                let is_program = of == Some(FileKind::Program) && !text.contains('/');
                if let Some(id) = ModelId::parse(text).filter(|_| is_program) {
                    return Ok(Self::Hub(id, None));
                }
                bail!(
                    "{}",
                    no_model(&path, of, "a folder with config.json and weights, or a file of weights")
                );
            }
            Place::Hub(OnHub { id, revision, path }) => {
                if is_gguf(Path::new(&path)) {
                    return Ok(Self::HubGguf(id, revision, path));
                }
                if !path.is_empty() {
                    bail!("{text}: is {path} in {id}; for that model, give {id}");
                }
                Ok(Self::Hub(id, revision))
            }
            Place::Nowhere(path) if is_gguf(&path) => {
                let of_hub = text.rsplit_once('/').and_then(|(id, file)| Some((ModelId::parse(id)?, file)));
                Ok(match of_hub {
                    Some((id, file)) => Self::HubGguf(id, None, file.to_owned()),
                    None => Self::Gguf(path),
                })
            }
            Place::Nowhere(path) => {
                Ok(ModelId::parse(text).map_or(Self::Folder(path), |id| Self::Hub(id, None)))
            }
        }
    }

    /// A note for the reader if a folder has the name of a model on the Hub.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        let Self::Folder(folder) = self else { return None };
        let text = folder.to_str()?;
        let id = ModelId::parse(text).filter(|_| folder.is_dir())?;
        Some(format!("model: the folder {text}; for {id} from the Hub, run this where no such folder exists"))
    }

    /// Refuses a revision for a model that has none, and one that differs from that of its address; `given` names the revision in the
    /// error.
    ///
    /// # Errors
    /// When there is a revision and the model is not one of the Hub, or its address names another.
    pub fn check_revision(&self, given: &str, revision: Option<&str>) -> anyhow::Result<()> {
        let Some(revision) = revision else { return Ok(()) };
        match self {
            Self::Hub(_, None) | Self::HubGguf(_, None, _) => Ok(()),
            Self::Hub(id, Some(own)) | Self::HubGguf(id, Some(own), _) => check_one(
                &OnHub { id: id.clone(), revision: Some(own.clone()), path: String::new() },
                given,
                revision,
            ),
            Self::Folder(path) => {
                bail!("{given} is for models of the Hub; the folder {} has no revisions", path.display())
            }
            Self::Gguf(path) | Self::File(path) => {
                bail!("{given} is for models of the Hub; the file {} has no revisions", path.display())
            }
        }
    }

    /// The revision to take: that of the address, or else the one that was given, or else `main`.
    #[must_use]
    pub fn revision<'a>(&'a self, given: Option<&'a str>) -> &'a str {
        match self {
            Self::Hub(_, Some(own)) | Self::HubGguf(_, Some(own), _) => own,
            _ => given.unwrap_or(MAIN),
        }
    }
}

/// Refuses a revision other than that of the address.
pub(crate) fn check_one(place: &OnHub, given: &str, revision: &str) -> anyhow::Result<()> {
    match &place.revision {
        Some(own) if own != revision => {
            bail!(
                "{given} {revision}: the address of {} names the revision {own}; give one of them",
                place.id
            )
        }
        _ => Ok(()),
    }
}

/// The adapter that a name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamedAdapter {
    /// A folder, which may not be there.
    Folder(PathBuf),
    /// An adapter on the Hub, and its revision.
    Hub(ModelId, String),
}

impl NamedAdapter {
    /// A folder if one of that name exists, otherwise an adapter on the Hub if it is `owner/name` or an address.
    ///
    /// # Errors
    /// When there is a file of that name, or it is the address of something else.
    pub fn find(text: &str) -> anyhow::Result<Self> {
        match place(text)? {
            Place::Folder(path) => Ok(Self::Folder(path)),
            Place::File(path, of) => {
                bail!("{}", no_model(&path, of, "a folder with adapter_config.json and its weights"))
            }
            Place::Hub(OnHub { id, revision, path }) => {
                if !path.is_empty() {
                    bail!("{text}: is {path} in {id}; for that adapter, give {id}");
                }
                Ok(Self::Hub(id, revision.unwrap_or_else(|| MAIN.to_owned())))
            }
            Place::Nowhere(path) => {
                let id = ModelId::parse(text).filter(|_| text.contains('/'));
                Ok(id.map_or(Self::Folder(path), |id| Self::Hub(id, MAIN.to_owned())))
            }
        }
    }
}

/// The dictionary of features that a name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamedDictionary {
    /// That of the demo model, which is built in.
    Demo,
    /// A folder, which may not be there.
    Folder(PathBuf),
    /// A folder of a repository on the Hub, "" for its root, and the revision.
    Hub(ModelId, String, String),
}

impl NamedDictionary {
    /// `demo`, a folder if one of that name exists, otherwise `owner/name` or `owner/name/FOLDER` on the Hub if it can be that, or an
    /// address there.
    ///
    /// # Errors
    /// When there is a file of that name, or it is the address of something else.
    pub fn find(text: &str) -> anyhow::Result<Self> {
        if text == DEMO_NAME {
            return Ok(Self::Demo);
        }
        let plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\\');
        let inside = || {
            let mut parts = text.split('/');
            let id = ModelId::parse(&format!("{}/{}", parts.next()?, parts.next()?))?;
            let rest: Vec<&str> = parts.collect();
            rest.iter().all(|part| plain(part)).then(|| Self::Hub(id, MAIN.to_owned(), rest.join("/")))
        };
        match place(text)? {
            Place::Folder(path) => Ok(Self::Folder(path)),
            Place::File(path, of) => {
                bail!("{}", no_model(&path, of, "a folder with cfg.json and sae_weights.safetensors"))
            }
            Place::Hub(OnHub { id, revision, path }) => {
                if !path.is_empty() && !path.split('/').all(plain) {
                    bail!("{text}: {path:?} is no folder of a repository");
                }
                Ok(Self::Hub(id, revision.unwrap_or_else(|| MAIN.to_owned()), path))
            }
            Place::Nowhere(path) => Ok(inside().unwrap_or(Self::Folder(path))),
        }
    }
}

/// A model on the Hub by its name or its address, and the revision to take. `given` names the caller's revision in an error.
///
/// # Errors
/// When the text is no name of a model there, or its address names another revision.
pub fn model_id(text: &str, given: &str, revision: Option<&str>) -> anyhow::Result<(ModelId, String)> {
    let place = match address(text)? {
        Some(place) if !place.path.is_empty() => {
            bail!("{text}: is {} in {}; for that model, give {1}", place.path, place.id)
        }
        Some(place) => place,
        None => {
            let id = ModelId::parse(text).with_context(|| {
                let names: Vec<_> = ModelId::aliases().map(|(alias, _)| alias).collect();
                format!(
                    "{text:?} is not the name of a model; expected owner/name or one of {}",
                    names.join(", ")
                )
            })?;
            OnHub { id, revision: None, path: String::new() }
        }
    };
    if let Some(revision) = revision {
        check_one(&place, given, revision)?;
    }
    let revision = place.revision.or_else(|| revision.map(str::to_owned));
    Ok((place.id, revision.unwrap_or_else(|| MAIN.to_owned())))
}

/// The place to which a name leads.
enum Place {
    /// A folder on disk.
    Folder(PathBuf),
    /// A file on disk.
    File(PathBuf, Option<FileKind>),
    /// An address of the Hub.
    Hub(OnHub),
    /// Nothing of that name is here.
    Nowhere(PathBuf),
}

/// Looks on disk first, with `~` as the home folder unless there is a folder of that name.
fn place(text: &str) -> anyhow::Result<Place> {
    let mut path = PathBuf::from(text);
    if path.symlink_metadata().is_err() {
        if let Some(found) = address(text)? {
            return Ok(Place::Hub(found));
        }
        if let Some(rest) = text.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with('/'))
            && let Some(home) = std::env::home_dir().filter(|home| !home.as_os_str().is_empty())
        {
            path = home.join(rest.trim_start_matches('/'));
        }
        if path.symlink_metadata().is_err() {
            return Ok(Place::Nowhere(path));
        }
    }
    let named = || path.display().to_string();
    let there = match std::fs::metadata(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!("{}: is a link that leads nowhere; mend it, or give another name", named())
        }
        there => there.with_context(named)?,
    };
    if there.is_dir() {
        return Ok(Place::Folder(path));
    }
    if !there.is_file() {
        bail!("{}: is a device or a pipe; expected a folder or a file", named());
    }
    let kind = FileKind::of_file(&path).with_context(named)?;
    Ok(Place::File(path, kind))
}

fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf"))
}

/// Whether a file of this kind may be a model's weights.
fn holds_weights(kind: &FileKind) -> bool {
    matches!(kind, FileKind::Safetensors | FileKind::Zip | FileKind::Pickle | FileKind::LlmC)
}

/// Whether a file bears a name that programs give to weights; if it is something else, its reader tells what.
fn has_name_of_weights(path: &Path) -> bool {
    const ENDS: [&str; 5] = ["safetensors", "bin", "pt", "pth", "ckpt"];
    path.extension().is_some_and(|end| ENDS.iter().any(|of| end.eq_ignore_ascii_case(of)))
}

/// The error about a file where `expected` is needed.
fn no_model(path: &Path, of: Option<FileKind>, expected: &str) -> String {
    let named = path.display();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match of {
        Some(FileKind::Gguf | FileKind::LlmC) => {
            format!("{named}: is a file of a whole model; expected {expected}")
        }
        Some(kind) if kind == FileKind::Json || holds_weights(&kind) => {
            format!(
                "{named}: is {kind}; name the folder that holds it, {}; expected {expected}",
                folder.display()
            )
        }
        Some(kind @ FileKind::Text(_)) => format!("{named}: is {kind}; expected {expected}"),
        Some(kind) => format!("{named}: is {kind}; expected {expected}; {}", kind.remedy()),
        None => format!("{named}: is a file of a kind that is not known; expected {expected}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dictionary_is_a_folder_here_or_one_in_a_repository() {
        let found = |text: &str| match NamedDictionary::find(text).unwrap() {
            NamedDictionary::Hub(id, revision, folder) => format!("{id} at {revision}: {folder}"),
            NamedDictionary::Folder(folder) => folder.display().to_string(),
            NamedDictionary::Demo => "built in".to_owned(),
        };
        assert_eq!((found("demo"), found("./demo")), ("built in".to_owned(), "./demo".to_owned()));
        assert_eq!(found("who/saes/blocks.8.hook_resid_pre"), "who/saes at main: blocks.8.hook_resid_pre");
        assert_eq!(found("who/saes"), "who/saes at main: ");
        assert_eq!(found("who/saes/a/b"), "who/saes at main: a/b");
        assert_eq!(found("https://huggingface.co/who/saes/tree/v2/a/b"), "who/saes at v2: a/b");
        for folder in ["sae", "who/saes/../x", "who/saes/", "./sae/x", "/tmp/sae/x", "src"] {
            assert_eq!(found(folder), folder);
        }
        assert!(
            NamedDictionary::find("Cargo.toml").unwrap_err().to_string().contains("is a text that begins")
        );
        assert!(NamedDictionary::find("https://huggingface.co/who/saes/tree/main/a/../b").is_err());
    }

    #[test]
    fn a_name_is_what_is_on_disk_and_then_what_is_on_the_hub() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let at = |name: &str| folder.path().join(name).display().to_string();
        std::fs::create_dir(at("model"))?;
        std::fs::write(at("model.bin"), b"GGUF\x03")?;
        std::fs::write(at("notes"), "some text")?;
        std::fs::write(at("model.safetensors"), [&2u64.to_le_bytes()[..], b"{}"].concat())?;
        assert_eq!(Named::find(&at("model"))?, Named::Folder(at("model").into()));
        assert_eq!(Named::find(&at("model.bin"))?, Named::Gguf(at("model.bin").into()));
        assert_eq!(Named::find(&at("nothing"))?, Named::Folder(at("nothing").into()));
        std::fs::write(at("ckpt"), b"PK\x03\x04..archive/data.pkl")?;
        std::fs::write(at("x.pt"), "some text")?;
        std::fs::write(at("a.gz"), b"\x1f\x8b\x08\0")?;
        std::fs::write(at("config.json"), "{}")?;
        for name in ["model.safetensors", "ckpt", "x.pt"] {
            assert_eq!(Named::find(&at(name))?, Named::File(at(name).into()), "{name}");
        }
        for (name, says) in [
            ("notes", "is a text that begins \"some text\"; expected a folder"),
            ("config.json", "is a JSON file; name the folder that holds it"),
            (
                "a.gz",
                "is a gzip archive; expected a folder with config.json and weights, or a file of weights; unpack it",
            ),
        ] {
            let error = Named::find(&at(name)).unwrap_err().to_string();
            assert!(error.contains(says) && error.contains(&at(name)), "{error}");
            assert!(NamedAdapter::find(&at(name)).unwrap_err().to_string().contains("adapter_config.json"));
        }
        let adapter = NamedAdapter::find(&at("model.safetensors")).unwrap_err().to_string();
        assert!(adapter.contains("is a safetensors file; name the folder that holds it"), "{adapter}");
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("nowhere", at("link"))?;
            assert!(Named::find(&at("link")).unwrap_err().to_string().contains("leads nowhere"));
            assert!(Named::find("/dev/null").unwrap_err().to_string().contains("a device"));
        }
        let hub = |text: &str| ModelId::parse(text).context("an id");
        assert_eq!(Named::find("who/name")?, Named::Hub(hub("who/name")?, None));
        assert_eq!(Named::find("who/name/x.gguf")?, Named::HubGguf(hub("who/name")?, None, "x.gguf".into()));
        let of_address = Named::find("https://huggingface.co/who/name/tree/v1")?;
        assert_eq!(of_address, Named::Hub(hub("who/name")?, Some("v1".into())));
        assert_eq!((of_address.revision(None), Named::find("who/name")?.revision(Some("v2"))), ("v1", "v2"));
        assert!(of_address.check_revision("--revision", Some("v1")).is_ok());
        let error = of_address.check_revision("--revision", Some("v2")).unwrap_err().to_string();
        assert!(error.contains("names the revision v1"), "{error}");
        let file = Named::find("https://huggingface.co/who/name/blob/main/model.safetensors");
        assert!(file.unwrap_err().to_string().contains("give who/name"));
        // The tests run in the folder of this crate.
        assert!(Named::find("src/lib.rs").unwrap_err().to_string().contains("is a text that begins"));
        if let Some(home) = std::env::home_dir() {
            assert_eq!(Named::find("~/no-such-model")?, Named::Folder(home.join("no-such-model")));
        }
        Ok(())
    }
}
