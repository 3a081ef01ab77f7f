//! A model by the name that a user gives.

use anyhow::{Context, bail};
use gpt2_loader::ModelId;
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
    /// A model on the Hub.
    Hub(ModelId),
    /// A GGUF file of a model on the Hub.
    HubGguf(ModelId, String),
}

impl Named {
    /// A folder or a GGUF file if one of that name exists, otherwise a model on the Hub if it can be its name.
    #[must_use]
    pub fn find(text: &str) -> Self {
        let path = Path::new(text);
        let is_gguf = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf"));
        if is_gguf && !path.is_dir() {
            let of_hub = text.rsplit_once('/').and_then(|(id, file)| Some((ModelId::parse(id)?, file)));
            return match of_hub.filter(|_| path.symlink_metadata().is_err()) {
                Some((id, file)) => Self::HubGguf(id, file.to_string()),
                None => Self::Gguf(text.into()),
            };
        }
        let id = ModelId::parse(text);
        // A file of that name, such as this program itself, is not a model.
        if path.is_dir() || (id.is_none() && path.exists()) {
            return Self::Folder(text.into());
        }
        id.map_or_else(|| Self::Folder(text.into()), Self::Hub)
    }

    /// A note for the reader if a folder has the name of a model on the Hub.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        let Self::Folder(folder) = self else { return None };
        let text = folder.to_str()?;
        let id = ModelId::parse(text).filter(|_| folder.is_dir())?;
        Some(format!("model: the folder {text}; for {id} from the Hub, run this where no such folder exists"))
    }

    /// Refuses a revision for a model that has none; `given` names the revision in the error.
    ///
    /// # Errors
    /// When there is a revision and the model is not one of the Hub.
    pub fn check_revision(&self, given: &str, revision: Option<&str>) -> anyhow::Result<()> {
        let what = match self {
            Self::Hub(_) | Self::HubGguf(..) => return Ok(()),
            Self::Folder(path) => format!("the folder {}", path.display()),
            Self::Gguf(path) => format!("the file {}", path.display()),
        };
        match revision {
            Some(_) => bail!("{given} is for models of the Hub; {what} has no revisions"),
            None => Ok(()),
        }
    }
}

/// The dictionary of features that a name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamedDictionary {
    /// A folder, which may not be there.
    Folder(PathBuf),
    /// A folder of a repository on the Hub, "" for its root.
    Hub(ModelId, String),
}

impl NamedDictionary {
    /// A folder if one of that name exists, otherwise `owner/name` or `owner/name/FOLDER` on the Hub if it can be that.
    #[must_use]
    pub fn find(text: &str) -> Self {
        let inside = || {
            let mut parts = text.split('/');
            let id = ModelId::parse(&format!("{}/{}", parts.next()?, parts.next()?))?;
            let rest: Vec<&str> = parts.collect();
            let plain = |part: &&str| !matches!(*part, "" | "." | "..") && !part.contains('\\');
            rest.iter().all(plain).then(|| Self::Hub(id, rest.join("/")))
        };
        let path = Path::new(text);
        if path.symlink_metadata().is_ok() { None } else { inside() }
            .unwrap_or_else(|| Self::Folder(path.into()))
    }
}

/// The id of a model on the Hub.
///
/// # Errors
/// When the text is no name of a model there.
pub fn model_id(text: &str) -> anyhow::Result<ModelId> {
    ModelId::parse(text).with_context(|| {
        let names: Vec<_> = ModelId::aliases().map(|(alias, _)| alias).collect();
        format!("{text:?} is not the name of a model; expected owner/name or one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dictionary_is_a_folder_here_or_one_in_a_repository() {
        let found = |text: &str| match NamedDictionary::find(text) {
            NamedDictionary::Hub(id, folder) => format!("{id}: {folder}"),
            NamedDictionary::Folder(folder) => folder.display().to_string(),
        };
        assert_eq!(found("who/saes/blocks.8.hook_resid_pre"), "who/saes: blocks.8.hook_resid_pre");
        assert_eq!((found("who/saes"), found("who/saes/a/b")), ("who/saes: ".into(), "who/saes: a/b".into()));
        for folder in ["sae", "who/saes/../x", "who/saes/", "./sae/x", "/tmp/sae/x", "src"] {
            assert_eq!(found(folder), folder);
        }
    }
}
