//! Everything that a run reads, so that it does not overwrite any of it.

use crate::hub::is_of_the_cache;
use crate::names::{DEMO_NAME, Named};
use anyhow::bail;
use gpt2_files::Identity;
use gpt2_loader::{AdapterFiles, FILE_NAMES, Files};
use std::path::{Path, PathBuf};

/// The files that a run reads, and the folders that it may not write to.
#[derive(Debug, Clone, Default)]
pub struct ReadFiles {
    /// A description of each file for errors, and its path.
    pub files: Vec<(String, PathBuf)>,
    /// Folders of models: a new file there becomes part of the model if it has the name of a model's file.
    pub models: Vec<PathBuf>,
    /// The Hub's cache, which Python also uses.
    pub cache: Option<PathBuf>,
}

impl ReadFiles {
    /// The files of a model and of the adapters on it.
    ///
    /// # Errors
    /// When an index of the model's files cannot be read.
    pub fn of<'a>(files: &Files, adapters: impl IntoIterator<Item = &'a PathBuf>) -> anyhow::Result<Self> {
        let mut inputs = Self::default();
        inputs.model(files)?;
        adapters.into_iter().for_each(|path| inputs.file_of_adapter(path));
        Ok(inputs)
    }

    /// These files and folders by absolute paths, which stay right where the process changes its working directory.
    #[must_use]
    pub fn absolute(self) -> Self {
        let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        Self {
            files: self.files.into_iter().map(|(what, path)| (what, absolute(path))).collect(),
            models: self.models.into_iter().map(absolute).collect(),
            cache: self.cache.map(absolute),
        }
    }

    /// Adds a file, such as "the prompt".
    pub fn file(&mut self, what: &str, path: impl Into<PathBuf>) {
        self.files.push((what.to_owned(), path.into()));
    }

    /// Adds the files of a model.
    ///
    /// # Errors
    /// When an index of them cannot be read.
    pub fn model(&mut self, files: &Files) -> anyhow::Result<()> {
        self.models.extend(model_folders(files)?);
        for path in files.paths()? {
            self.file("a file of the model", path);
        }
        Ok(())
    }

    /// Adds the files of an adapter.
    pub fn adapter(&mut self, files: &AdapterFiles) {
        for path in [&files.config, &files.weights] {
            self.file_of_adapter(path);
        }
    }

    fn file_of_adapter(&mut self, path: &Path) {
        self.models.extend(path.parent().map(Path::to_path_buf));
        self.file("a file of the adapter", path);
    }

    /// Adds the folder of a model or an adapter by the name that the user gives, before its files are found. Does
    /// nothing for the built-in model, or if there is no such folder.
    pub fn named(&mut self, source: &str) {
        if source != DEMO_NAME
            && let Ok(Named::Folder(folder)) = Named::find(source)
            && folder.is_dir()
        {
            self.models.push(folder);
        }
    }

    /// Refuses an output file that would harm an input. `named` is how the user named it, `target` the file itself.
    ///
    /// # Errors
    /// When it would.
    pub fn spare(&self, named: &str, target: &Path) -> anyhow::Result<()> {
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
    ///
    /// # Errors
    /// When it does.
    pub fn spare_folder(&self, named: &str, dir: &Path) -> anyhow::Result<()> {
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

    /// Refuses an output folder in which an input lies.
    ///
    /// # Errors
    /// When one does.
    pub fn spare_inside(&self, named: &str, dir: &Path) -> anyhow::Result<()> {
        let Some(dir) = canonical(dir) else { return Ok(()) };
        let lies_in = |path: &Path| canonical(path).is_some_and(|path| path.starts_with(&dir));
        if let Some((what, path)) = self.files.iter().find(|(_, path)| lies_in(path)) {
            let path = path.display();
            bail!("{named}: holds {what}, {path}, which this run reads; choose another folder")
        }
        if let Some(model) = self.models.iter().find(|model| lies_in(model)) {
            let model = model.display();
            bail!(
                "{named}: holds the model or an adapter in {model}, which this run reads; choose another folder"
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

/// The folders of a model's files, which belong together, and those of the files that these lead to. A file that holds a whole model
/// stands alone, and has none.
///
/// # Errors
/// When an index of files cannot be read.
pub(crate) fn model_folders(files: &Files) -> anyhow::Result<Vec<PathBuf>> {
    Ok(if files.weight_files.stands_alone() { vec![] } else { folders(&files.paths()?) })
}

/// The folders in which files lie by their names, and after all links.
pub(crate) fn folders(files: &[PathBuf]) -> Vec<PathBuf> {
    let named = |path: &PathBuf| {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        folder.canonicalize().ok()
    };
    let linked = |path: &PathBuf| Some(path.canonicalize().ok()?.parent()?.to_path_buf());
    files.iter().flat_map(|path| [named(path), linked(path)]).flatten().collect()
}
