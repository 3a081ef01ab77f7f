//! [`Refusal`]: why a reader does not give a file's tensors, before it is known what to do about it.

/// The reason of a reader that does not give a file's tensors.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Bytes that no program meant.
    Damaged(String),
    /// A sound file of a kind that this crate does not read: what it is, what is read instead, what to do.
    Unread(String),
}

impl From<String> for Refusal {
    fn from(reason: String) -> Self {
        Self::Damaged(reason)
    }
}

impl From<&str> for Refusal {
    fn from(reason: &str) -> Self {
        Self::Damaged(reason.into())
    }
}

impl Refusal {
    /// The reason, whatever kind it is of.
    pub(crate) fn reason(self) -> String {
        match self {
            Self::Damaged(reason) | Self::Unread(reason) => reason,
        }
    }

    /// This refusal, of one part of the file.
    pub(crate) fn of(self, part: &str) -> Self {
        match self {
            Self::Damaged(reason) => Self::Damaged(format!("{part}: {reason}")),
            Self::Unread(reason) => Self::Unread(format!("{part}: {reason}")),
        }
    }
}
