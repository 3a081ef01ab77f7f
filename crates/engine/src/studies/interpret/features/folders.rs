//! The folders that features over a store are written to: pages, and files for Neuronpedia.

use super::store_options::StoreOptions;
use crate::read_files::ReadFiles;
use crate::spelling::Spelling;
use anyhow::{Context, bail};
use gpt2_files::folder::{StagedFolder, commit};
use gpt2_view::{NeuronpediaId, feature_pages, neuronpedia_files};
use serde::Serialize;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// The page that leads to the others, and the folder of their data.
const PAGES: [&str; 2] = ["index.html", "features"];

/// Folders that a study of a store writes. Until they are [written](FeatureFolders::commit), nothing that was there changes, and
/// dropping them leaves no trace.
#[derive(Debug)]
pub struct FeatureFolders {
    pages: Option<OutFolder>,
    neuronpedia: Option<(OutFolder, NeuronpediaId)>,
}

/// A folder to write.
#[derive(Debug)]
struct OutFolder {
    /// The option and its value.
    named: String,
    path: PathBuf,
    /// The names of files of an earlier run, which go.
    old: Vec<PathBuf>,
    staged: StagedFolder,
}

impl StoreOptions {
    /// Makes the folders to write, so that whatever can be refused is refused before the work.
    ///
    /// # Errors
    /// When one cannot be written to, is that of another run, holds what may not be replaced, or would harm an input.
    pub fn make_folders(&self, inputs: &ReadFiles, spelling: Spelling) -> anyhow::Result<FeatureFolders> {
        let pages = self.pages.as_deref().map(|folder| (spelling.given("pages", folder.display()), folder));
        let upload = self.neuronpedia.as_ref();
        let upload =
            upload.map(|upload| (spelling.given("neuronpedia", upload.folder.display()), &*upload.folder));
        for (named, folder) in pages.iter().chain(&upload) {
            inputs.spare_folder(named, folder)?;
        }
        if let (Some((pages, of_pages)), Some((upload, of_upload))) = (&pages, &upload) {
            let places = [place(of_pages), place(of_upload)];
            if places[0].starts_with(&places[1]) || places[1].starts_with(&places[0]) {
                bail!("{upload}: is the folder of {pages}, or one of them lies in the other; choose another");
            }
        }
        if let Some((_, folder)) = &pages {
            self.check_pages(folder, spelling)?;
        }
        if let Some((named, folder)) = &upload
            && holds_files(folder)
        {
            return Err(there_already(format!(
                "{named}: holds files already; name a new or an empty folder"
            )));
        }
        let pages = pages.map(|(named, folder)| {
            let staged =
                StagedFolder::new(folder, self.overwrite).with_context(|| spelling.option("pages"))?;
            OutFolder { named, path: folder.to_path_buf(), old: vec![], staged }.without_old_pages()
        });
        let upload = upload.map(|(named, folder)| {
            let staged = StagedFolder::new(folder, false).with_context(|| spelling.option("neuronpedia"))?;
            anyhow::Ok(OutFolder { named, path: folder.to_path_buf(), old: vec![], staged })
        });
        let id = self.neuronpedia.as_ref().map(|upload| upload.id.clone());
        let folders = FeatureFolders { pages: pages.transpose()?, neuronpedia: upload.transpose()?.zip(id) };
        folders.check(inputs)?;
        Ok(folders)
    }

    /// Refuses to replace pages without leave.
    fn check_pages(&self, folder: &Path, spelling: Spelling) -> anyhow::Result<()> {
        let paths = PAGES.map(|name| folder.join(name));
        let there = paths.iter().find(|path| path.symlink_metadata().is_ok());
        match there.filter(|_| !self.overwrite) {
            Some(there) => Err(there_already(format!(
                "{}: is there already; choose another folder, or replace it with {}",
                spelling.given("pages", there.display()),
                spelling.switch("overwrite")
            ))),
            None => Ok(()),
        }
    }
}

impl OutFolder {
    /// This folder, from which the pages of an earlier run go.
    fn without_old_pages(mut self) -> anyhow::Result<Self> {
        let [index, data] = PAGES.map(PathBuf::from);
        self.old.push(index);
        let place = self.path.join(&data);
        if place.is_symlink() {
            bail!("{}: {} is a link; remove it, or choose another folder", self.named, place.display());
        }
        if place.is_dir() {
            self.old.push(data.join("index.js"));
            for file in place.read_dir().with_context(|| self.named.clone())? {
                let name = PathBuf::from(file.with_context(|| self.named.clone())?.file_name());
                let stem = name.file_stem().and_then(|stem| stem.to_str());
                let is_number = stem.is_some_and(|stem| stem.bytes().all(|byte| byte.is_ascii_digit()));
                if is_number && name.extension().is_some_and(|end| end == "js") {
                    self.old.push(data.join(name));
                }
            }
        } else if place.symlink_metadata().is_ok() {
            bail!("{}: {} is a file; choose another folder", self.named, place.display());
        }
        for name in &self.old {
            self.staged.take_away(name).with_context(|| self.named.clone())?;
        }
        Ok(self)
    }

    /// Refuses a folder that is an input or holds one.
    fn check(&self, inputs: &ReadFiles) -> anyhow::Result<()> {
        let Self { named, path, old, .. } = self;
        inputs.spare_folder(named, path)?;
        inputs.spare_inside(named, path)?;
        let spare = |name: &PathBuf| inputs.spare(&format!("{named}: {}", name.display()), &path.join(name));
        old.iter().try_for_each(spare)
    }

    fn add(&mut self, files: Vec<(String, Vec<u8>)>) -> anyhow::Result<()> {
        Ok(files.iter().try_for_each(|(name, content)| self.staged.add(name, content))?)
    }
}

impl FeatureFolders {
    /// Refuses folders that would harm one of these inputs, too.
    ///
    /// # Errors
    /// When one would.
    pub fn check(&self, inputs: &ReadFiles) -> anyhow::Result<()> {
        let upload = self.neuronpedia.iter().map(|(folder, _)| folder);
        self.pages.iter().chain(upload).try_for_each(|folder| folder.check(inputs))
    }

    /// Writes all files of a report and its features under temporary names.
    ///
    /// # Errors
    /// When the system refuses, as where the disk is full.
    pub fn stage(&mut self, report: &impl Serialize, features: &[impl Serialize]) -> anyhow::Result<()> {
        if let Some(folder) = &mut self.pages {
            folder.add(feature_pages(report, features)?)?;
        }
        if let Some((folder, id)) = &mut self.neuronpedia {
            folder.add(neuronpedia_files(id, report, features)?)?;
        }
        Ok(())
    }

    /// Gives all files their names, and removes those of earlier pages. Returns what to open: the index of the pages, and the folder for
    /// Neuronpedia.
    ///
    /// # Errors
    /// When the system refuses: then everything is as it was, or the error says where the old files are.
    pub fn commit(self) -> anyhow::Result<Vec<PathBuf>> {
        let pages = self.pages.map(|folder| (folder.path.join(PAGES[0]), folder.staged));
        let upload = self.neuronpedia.map(|(folder, _)| (folder.path, folder.staged));
        let (told, staged) = pages.into_iter().chain(upload).unzip();
        commit(staged)?;
        Ok(told)
    }
}

/// An error about what is there already, of the kind that says so.
fn there_already(text: String) -> anyhow::Error {
    io::Error::new(ErrorKind::AlreadyExists, text).into()
}

/// Whether there is something else in a folder than what a run that died has left.
fn holds_files(folder: &Path) -> bool {
    let mut entries = folder.read_dir().into_iter().flatten().flatten();
    entries.any(|entry| !entry.file_name().to_string_lossy().starts_with(".gpt2-"))
}

/// The place of a folder, which may be missing, after all links.
fn place(folder: &Path) -> PathBuf {
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_path_buf());
    let there = folder.ancestors().find_map(|dir| Some((dir, dir.canonicalize().ok()?)));
    let place = there.and_then(|(dir, place)| Some(place.join(folder.strip_prefix(dir).ok()?)));
    place.unwrap_or(folder)
}
