//! [`Remedy`]: what to do about an error, as data.

use std::fmt;

/// What to do about a [`LoadError`](crate::LoadError). Displays in a library's words; a program that has options
/// or variables for it can name them instead.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// Correct the Hub's address.
    CheckEndpoint,
    /// Check the network, or work without it.
    CheckNetwork,
    /// Find out what answers instead of the Hub.
    CheckAnswer,
    /// Download the model on a machine with a network.
    Download {
        /// The model.
        model: String,
        /// The revision.
        revision: String,
        /// Whether the Hub was not asked because it is set offline.
        offline: bool,
    },
    /// Download the whole model before reading its headers.
    DownloadFirst {
        /// The model.
        model: String,
    },
    /// Correct the model's name, or check the token.
    CheckName {
        /// Whether a token was sent.
        has_token: bool,
    },
    /// Accept the model's terms.
    AcceptTerms {
        /// Whether a token was sent.
        has_token: bool,
    },
    /// Give another token.
    RenewToken,
    /// Name another revision.
    ChooseRevision,
    /// Wait and try again.
    TryLater {
        /// Whether a token would allow more requests.
        token_helps: bool,
    },
    /// Try again: what has arrived is kept.
    RunAgain,
    /// Try again with a longer timeout.
    RaiseTimeout,
    /// Fetch bad cached files again.
    RepairCache {
        /// The model.
        model: String,
    },
    /// Free some disk space, or move the cache to another disk.
    MakeRoom,
    /// Move the cache to a folder that is writable.
    MoveCache,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CheckEndpoint => "check the endpoint",
            Self::CheckNetwork => {
                "check the network and its proxy, set the endpoint to a mirror, or name a folder with the model's files"
            }
            Self::CheckAnswer => "does the network ask for a login, or the endpoint lead elsewhere?",
            Self::Download { .. } => {
                "download it where there is a network, or name a folder with the model's files"
            }
            Self::DownloadFirst { .. } => "download it first",
            Self::CheckName { has_token: true } => "check the name and whether the token in use may read it",
            Self::CheckName { has_token: false } => "check the name, or give a token if it is private",
            Self::AcceptTerms { has_token: true } => {
                "accept its terms on the model's page with the account of the token in use"
            }
            Self::AcceptTerms { has_token: false } => {
                "accept its terms on the model's page, then give a token"
            }
            Self::RenewToken => "check the token, or log in again",
            Self::ChooseRevision => "name a branch, a tag or the 40 digits of a commit",
            Self::TryLater { token_helps: false } => "try again later",
            Self::TryLater { token_helps: true } => {
                "try again later, or give a token, which allows more requests"
            }
            Self::RunAgain => "try again: a download resumes where it stopped",
            Self::RaiseTimeout => "try again, or allow more time",
            Self::RepairCache { .. } => "repair the cache where there is a network",
            Self::MakeRoom => "make room, or keep the cache on another disk",
            Self::MoveCache => "keep the cache in another folder, or download as a user who can write to it",
        })
    }
}
