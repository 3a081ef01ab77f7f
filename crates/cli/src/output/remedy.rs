//! Advice on the loader's errors, in the command's words: the library does not know the options.

use gpt2_engine::open::HubThing;
use gpt2_loader::{HubError, LoadError, Remedy};
use std::error::Error;
use std::sync::OnceLock;

/// The things that can stand in place of a model of the Hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OtherModel {
    /// A folder, or no `--model`, which is the demo model.
    NoOption,
    /// A folder, or `demo`.
    Demo,
    /// A folder alone: without a model, the command does something else.
    Folder,
}

/// Of the command that runs.
static OTHER_MODEL: OnceLock<OtherModel> = OnceLock::new();

/// Sets what can stand in place of a model of the Hub in this command, whose options have a `--model` or not.
pub(crate) fn command_is(name: &str, has_model_option: bool) {
    let other = match name {
        "train" | "import" => OtherModel::Folder,
        _ if has_model_option => OtherModel::NoOption,
        _ => OtherModel::Demo,
    };
    let _ = OTHER_MODEL.set(other); // once in a process
}

/// The text of an error, without its causes; `wanted` was looked up on the Hub.
pub(crate) fn text(error: &(dyn Error + 'static), wanted: Option<HubThing>) -> String {
    match (error.downcast_ref(), wanted) {
        (Some(LoadError::Hub(error)), Some(wanted)) => of_the_hub_for(error, wanted),
        (Some(error), _) => of_the_loader(error),
        (None, _) => error.to_string(),
    }
}

/// The text of an error of the Hub, with advice that is true of what was wanted.
fn of_the_hub_for(error: &HubError, wanted: HubThing) -> String {
    let folder = match wanted {
        HubThing::Model | HubThing::ModelFile => "name a folder with the model's files",
        HubThing::Adapter => "name a folder with the adapter's files",
        HubThing::Dictionary => "name a folder with the dictionary's files",
        HubThing::DataSet => "give a file of the data set, as in TASK=FILE",
    };
    let is_model = matches!(wanted, HubThing::Model | HubThing::ModelFile);
    match error.remedy() {
        Some(Remedy::CheckNetwork) => {
            let network = "check the network and HTTPS_PROXY, set HF_ENDPOINT to a mirror";
            match OTHER_MODEL.get() {
                Some(OtherModel::NoOption) if is_model => {
                    format!("{error}; {network}, {folder}, or leave --model out for the built-in demo model")
                }
                Some(OtherModel::Demo) if is_model => {
                    format!("{error}; {network}, {folder}, or give demo, the built-in model")
                }
                _ => format!("{error}; {network}, or {folder}"),
            }
        }
        // gpt2 download fetches models alone.
        Some(Remedy::Download { offline, .. }) if !is_model => {
            let offline = if offline { " (--offline, HF_HUB_OFFLINE)" } else { "" };
            format!("{error}{offline}; run this once where there is a network, or {folder}")
        }
        _ => of_the_hub(error),
    }
}

/// The text of a loader's error, with advice.
pub(crate) fn of_the_loader(error: &LoadError) -> String {
    match error {
        // Its reason has its own remedy.
        LoadError::TokenizerUnreachable { name, reason } => format!(
            "{name}: tokenizer: {}; fetch its files again, or give token ids instead of text",
            of_the_loader(reason)
        ),
        LoadError::Hub(error) => of_the_hub(error),
        error => error.to_string(),
    }
}

/// The text of an error of the Hub, with advice.
pub(crate) fn of_the_hub(error: &HubError) -> String {
    format!("{error}{}", error.remedy().as_ref().map_or_else(String::new, words))
}

/// The words for a remedy, to append to the problem.
fn words(remedy: &Remedy) -> String {
    match remedy {
        Remedy::CheckEndpoint => "; check HF_ENDPOINT or --endpoint".into(),
        Remedy::CheckNetwork => "; check the network and HTTPS_PROXY, or set HF_ENDPOINT to a mirror".into(),
        Remedy::CheckAnswer => "; does the network ask for a login, or HF_ENDPOINT lead elsewhere?".into(),
        Remedy::Download { model, revision, offline } => {
            let offline = if *offline { " (--offline, HF_HUB_OFFLINE)" } else { "" };
            format!(
                "{offline}; run `gpt2 download {model} --revision {revision}` where there is a network, or name a \
                 folder with the model's files"
            )
        }
        Remedy::DownloadFirst { model } => format!("; run `gpt2 download {model}` first"),
        Remedy::CheckName { has_token: false } => {
            "; check the name, or give a token in HF_TOKEN if it is private".into()
        }
        Remedy::AcceptTerms { has_token: false } => {
            "; accept its terms on the model's page, then give a token in HF_TOKEN".into()
        }
        Remedy::RenewToken => "; check HF_TOKEN, or log in again".into(),
        Remedy::TryLater { token_helps: true } => {
            "; try again later, or give a token in HF_TOKEN, which allows more requests".into()
        }
        Remedy::RunAgain => "; run the command again, a download goes on from where it ended".into(),
        Remedy::RaiseTimeout => "; run the command again, or allow more with --timeout".into(),
        Remedy::RepairCache { model } => {
            format!("; run `gpt2 verify-cache {model} --repair` where there is a network")
        }
        Remedy::MakeRoom => "; make room, or set HF_HUB_CACHE to a folder on another disk".into(),
        Remedy::MoveCache => {
            ": set HF_HUB_CACHE to another folder, or run `gpt2 download` as a user who can write to it"
                .into()
        }
        other => format!("; {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn remedies_name_options_and_variables() {
        let timeout = || LoadError::from(HubError::Timeout { url: "http://hub/x".into(), seconds: 30 });
        let words = "http://hub/x: no answer for 30 s; run the command again, or allow more with --timeout";
        assert_eq!(of_the_loader(&timeout()), words);
        assert_eq!(timeout().to_string(), "http://hub/x: no answer for 30 s; try again, or allow more time");

        let tokenizer = LoadError::TokenizerUnreachable { name: "a/b".into(), reason: Arc::new(timeout()) };
        let expected =
            format!("a/b: tokenizer: {words}; fetch its files again, or give token ids instead of text");
        assert_eq!(of_the_loader(&tokenizer), expected);

        let not_cached = |offline| HubError::NotCached {
            model: "a/b".into(),
            revision: "main".into(),
            file: "config.json".into(),
            cache: "/cache".into(),
            offline,
        };
        let download = "run `gpt2 download a/b --revision main` where there is a network, or name a folder with \
                        the model's files";
        let missing = "a/b at main: config.json is not in the cache /cache";
        assert_eq!(of_the_hub(&not_cached(false)), format!("{missing}; {download}"));
        assert_eq!(
            of_the_hub(&not_cached(true)),
            format!("{missing}, and no request is made offline (--offline, HF_HUB_OFFLINE); {download}")
        );
    }

    #[test]
    fn what_is_not_cached_is_fetched_by_the_command_that_can() {
        let not_cached = HubError::NotCached {
            model: "a/b".into(),
            revision: "main".into(),
            file: "cfg.json".into(),
            cache: "/cache".into(),
            offline: false,
        };
        let of = |kind| of_the_hub_for(&not_cached, kind);
        assert!(of(HubThing::Model).contains("run `gpt2 download a/b"));
        assert!(of(HubThing::Dictionary).ends_with(
            "; run this once where there is a network, or name a folder with the dictionary's files"
        ));
    }

    #[test]
    fn a_cause_is_worded_too() {
        let error = anyhow::Error::from(LoadError::from(HubError::TokenRefused {
            endpoint: "http://hub".into(),
            reason: "it is old".into(),
        }));
        let error = error.context("there is no folder");
        let texts: Vec<String> = error.chain().map(|cause| text(cause, None)).collect();
        let token = "http://hub does not take the token: it is old; check HF_TOKEN, or log in again";
        assert_eq!(texts, ["there is no folder", token]);
    }
}
