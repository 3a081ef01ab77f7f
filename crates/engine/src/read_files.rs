//! Everything that a run reads, so that it does not overwrite any of it.

use anyhow::bail;
use gpt2_engine::studies::checkpoints::model_folders;
use gpt2_engine::{DEMO_NAME, Named, is_of_the_cache};
use gpt2_files::Identity;
use gpt2_loader::{AdapterFiles, FILE_NAMES, Files};
use std::path::{Path, PathBuf};

#[derive(Debug, Default)]
pub(crate) struct ReadFiles {
    /// A description of each file for errors, and its path.
    files: Vec<(&'static str, PathBuf)>,
    /// Folders of models: a new file there becomes part of the model if it has the name of a model's file.
    models: Vec<PathBuf>,
    /// The Hub's cache, which Python also uses.
    pub(crate) cache: Option<PathBuf>,
}

impl ReadFiles {
    /// Adds a file, such as "the prompt".
    pub(crate) fn file(&mut self, what: &'static str, path: impl Into<PathBuf>) {
        self.files.push((what, path.into()));
    }

    pub(crate) fn model(&mut self, files: &Files) -> anyhow::Result<()> {
        self.models.extend(model_folders(files)?);
        for path in files.paths()? {
            self.file("a file of the model", path);
        }
        Ok(())
    }

    pub(crate) fn adapter(&mut self, files: &AdapterFiles) {
        for path in [&files.config, &files.weights] {
            self.models.extend(path.parent().map(Path::to_path_buf));
            self.file("a file of the adapter", path);
        }
    }

    /// Adds the folder of a model or an adapter by the name that the user gives, before its files are found. Does
    /// nothing for the built-in model, or if there is no such folder.
    pub(crate) fn named(&mut self, source: &str) {
        if source != DEMO_NAME
            && let Ok(Named::Folder(folder)) = Named::find(source)
            && folder.is_dir()
        {
            self.models.push(folder);
        }
    }

    /// Refuses an output file that would harm an input. `named` is how the user named it, `target` the file itself.
    pub(crate) fn spare(&self, named: &str, target: &Path) -> anyhow::Result<()> {
        let id = Identity::of(target);
        if id.is_some()
            && let Some((what, path)) = self.files.iter().find(|(_, path)| Identity::of(path) == id)
        {
            let path = path.display();
            bail!("{named}: is {what}, {path}, which this run reads; choose another name")
        }
        let Some(folder) = target.parent().and_then(canonical) else { return Ok(()) };
        self.spare_cache(named, &folder)?;
        let is_name = |name: &std::ffi::OsStr| FILE_NAMES.iter().any(|of| name.eq_ignore_ascii_case(of));
        let is_of_a_model = target.file_name().is_some_and(is_name);
        if is_of_a_model && self.models.iter().any(|model| canonical(model).as_ref() == Some(&folder)) {
            bail!(
                "{named}: would become part of the model in {}, which this run reads; choose another name",
                folder.display()
            )
        }
        Ok(())
    }

    /// Refuses an output folder if it is the model's folder or lies in the Hub's cache.
    pub(crate) fn spare_folder(&self, named: &str, dir: &Path) -> anyhow::Result<()> {
        // A folder that does not exist yet will lie in its nearest existing parent.
        let Some(found) = dir.ancestors().find_map(canonical) else { return Ok(()) };
        self.spare_cache(named, &found)?;
        let is_there = canonical(dir).is_some();
        if is_there && self.models.iter().any(|model| canonical(model).as_ref() == Some(&found)) {
            bail!(
                "{named}: is the folder of the model or of an adapter, which this run reads; choose another"
            )
        }
        Ok(())
    }

    /// Refuses a folder in the Hub's cache.
    fn spare_cache(&self, named: &str, folder: &Path) -> anyhow::Result<()> {
        let Some(cache) = self.cache.as_deref().and_then(canonical) else { return Ok(()) };
        let first = folder.strip_prefix(&cache).ok().and_then(|inside| inside.components().next());
        if first.is_some_and(|first| is_of_the_cache(&first.as_os_str().to_string_lossy())) {
            bail!(
                "{named}: lies in the cache of the Hub's models, {}; choose another folder",
                cache.display()
            )
        }
        Ok(())
    }
}

/// The folder's canonical path; an empty path is the working directory.
fn canonical(dir: impl AsRef<Path>) -> Option<PathBuf> {
    let dir = dir.as_ref();
    std::fs::canonicalize(if dir.as_os_str().is_empty() { Path::new(".") } else { dir }).ok()
}
