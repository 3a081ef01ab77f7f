//! How this machine accesses the Hub: flags come first, then the variables that Python's
//! `huggingface_hub` reads, in its order.

use crate::inputs::Inputs;
use crate::output::{self, note};
use crate::progress::downloads;
use anyhow::{Context, bail};
use clap::Args;
use gpt2_files::read_text;
use gpt2_loader::hub::{ENDPOINT, MAIN, Pin};
use gpt2_loader::{Hub, ModelId};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where to find models that are given by name rather than as a folder.
#[derive(Debug, Args)]
#[command(next_help_heading = "Hugging Face Hub")]
pub(crate) struct HubArgs {
    /// Branch, tag or commit of a model on the Hub [default: main]
    #[arg(long, value_name = "REV")]
    pub(crate) revision: Option<String>,
    /// Make no request: use only the cache [env: HF_HUB_OFFLINE]
    #[arg(long)]
    pub(crate) offline: bool,
    /// Folder for downloaded models, shared with Python [env: HF_HUB_CACHE] [default:
    /// ~/.cache/huggingface/hub]
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,
    /// Address of the Hub or of a mirror [env: HF_ENDPOINT] [default: https://huggingface.co]
    #[arg(long, value_name = "URL")]
    pub(crate) endpoint: Option<String>,
    /// Give up on a request that brings no data for this long [default: 30]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub(crate) timeout: Option<u64>,
}

/// The largest token file to read; a token has some forty characters.
const LONGEST_TOKEN: u64 = 4096;

/// What `--model` names.
pub(crate) enum Model {
    Folder(PathBuf),
    Gguf(PathBuf),
    Hub(ModelId),
    /// A GGUF file of a model on the Hub.
    HubGguf(ModelId, String),
}

/// A folder or a GGUF file if one of that name exists, otherwise a model on the Hub.
pub(crate) fn resolve(text: &str, args: &HubArgs) -> anyhow::Result<Model> {
    let path = Path::new(text);
    let is_gguf = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf"));
    if is_gguf && !path.is_dir() {
        let of_hub = text.rsplit_once('/').and_then(|(id, file)| Some((ModelId::parse(id)?, file)));
        if let Some((id, file)) = of_hub.filter(|_| path.symlink_metadata().is_err()) {
            return Ok(Model::HubGguf(id, file.to_string()));
        }
        no_revision(args, &format!("the file {text}"))?;
        return Ok(Model::Gguf(text.into()));
    }
    let id = ModelId::parse(text);
    // A file of that name, such as this program itself, is not a model.
    if Path::new(text).is_dir() || (id.is_none() && Path::new(text).exists()) {
        no_revision(args, &format!("the folder {text}"))?;
        if let Some(id) = id {
            note(&format!(
                "model: the folder {text}; for {id} from the Hub, run this where no such folder exists"
            ));
        }
        return Ok(Model::Folder(text.into()));
    }
    Ok(id.map_or_else(|| Model::Folder(text.into()), Model::Hub))
}

pub(crate) fn model_id(text: &str) -> anyhow::Result<ModelId> {
    ModelId::parse(text).with_context(|| {
        let names: Vec<_> = ModelId::aliases().map(|(alias, _)| alias).collect();
        format!("{text:?} is not the name of a model; expected owner/name or one of {}", names.join(", "))
    })
}

/// Refuses `--revision` for a model that has no revisions.
pub(crate) fn no_revision(args: &HubArgs, what: &str) -> anyhow::Result<()> {
    match &args.revision {
        Some(_) => bail!("--revision is for models of the Hub; {what} has no revisions"),
        None => Ok(()),
    }
}

pub(crate) fn revision(args: &HubArgs) -> &str {
    args.revision.as_deref().unwrap_or(MAIN)
}

/// The files whose content is known in advance.
pub(crate) fn pins() -> anyhow::Result<Vec<Pin>> {
    serde_json::from_str(gpt2_demo::HUB_MODELS).context("models/hub.json")
}

/// The Hub, as the flags and the environment configure it.
pub(crate) fn settings(args: &HubArgs) -> anyhow::Result<Hub> {
    let cache_dir = cache_dir(args)?;
    let endpoint = args.endpoint.clone().or_else(|| variable("HF_ENDPOINT"));
    let endpoint = endpoint.unwrap_or_else(|| ENDPOINT.into());
    let offline = variable("HF_HUB_OFFLINE").or_else(|| variable("TRANSFORMERS_OFFLINE"));
    let mut hub = Hub::new(cache_dir);
    hub.endpoint = endpoint.trim_end_matches('/').into();
    hub.token = token(&home()?);
    hub.offline = args.offline || offline.is_some_and(|value| is_true(&value));
    hub.timeout = Duration::from_secs(args.timeout.unwrap_or(30));
    hub.pins = pins()?;
    hub.progress = (!output::is_quiet()).then(downloads);
    Ok(hub)
}

/// The folder for downloaded models.
pub(crate) fn cache_dir(args: &HubArgs) -> anyhow::Result<PathBuf> {
    if let Some(dir) = &args.cache_dir {
        return Ok(dir.clone());
    }
    match variable("HF_HUB_CACHE").or_else(|| variable("HUGGINGFACE_HUB_CACHE")) {
        Some(dir) => Ok(expand(&dir)),
        None => Ok(home()?.join("hub")),
    }
}

/// Adds what this program reads to use the Hub: the cache and the token. Without a home folder there is neither.
pub(crate) fn inputs(args: &HubArgs, inputs: &mut Inputs) {
    inputs.cache = cache_dir(args).ok();
    if let Ok(home) = home() {
        inputs.file("the Hub's token", token_path(&home));
    }
}

fn token_path(home: &Path) -> PathBuf {
    variable("HF_TOKEN_PATH").map_or_else(|| home.join("token"), |path| expand(&path))
}

fn home() -> anyhow::Result<PathBuf> {
    variable("HF_HOME").map_or_else(default_home, |home| Ok(expand(&home)))
}

fn default_home() -> anyhow::Result<PathBuf> {
    let cache = match variable("XDG_CACHE_HOME") {
        Some(dir) => PathBuf::from(dir),
        None => std::env::home_dir()
            .filter(|home| !home.as_os_str().is_empty())
            .context("there is no home folder to keep models in; set HF_HOME, or give --cache-dir")?
            .join(".cache"),
    };
    Ok(cache.join("huggingface"))
}

fn token(home: &Path) -> Option<String> {
    if variable("HF_HUB_DISABLE_IMPLICIT_TOKEN").is_some_and(|value| is_true(&value)) {
        return None;
    }
    let token = variable("HF_TOKEN")
        .or_else(|| variable("HUGGING_FACE_HUB_TOKEN"))
        .or_else(|| read_text(&token_path(home), LONGEST_TOKEN).ok())?;
    Some(token.trim().to_string()).filter(|token| !token.is_empty())
}

/// The value of a variable, if it is set and not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}

fn is_true(value: &str) -> bool {
    ["1", "ON", "YES", "TRUE"].contains(&value.to_uppercase().as_str())
}

/// `~` and `$NAME`, as Python's expanduser and expandvars read them.
fn expand(path: &str) -> PathBuf {
    let home = || Some(std::env::home_dir()?.to_string_lossy().into_owned());
    PathBuf::from(shellexpand::full_with_context_no_errors(path, home, variable).into_owned())
}
