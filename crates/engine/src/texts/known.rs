//! Texts to begin with: in the public domain, and fetched from where they are, since none is part of this program.

use crate::hub::HubOptions;
use crate::observer::Observer;
use anyhow::Context;
use gpt2_loader::hub::Pin;

/// A text whose content is known in advance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownText {
    /// Its name.
    pub name: &'static str,
    /// The site that has it, without a slash at the end.
    pub site: &'static str,
    /// `owner/name` of the repository.
    repository: &'static str,
    commit: &'static str,
    file: &'static str,
    size: u64,
    sha256: &'static str,
}

/// Parts of plays of Shakespeare, about 40,000 lines, as Karpathy's char-rnn has them ("tiny Shakespeare"). The built-in demo model
/// learned from them.
pub const SHAKESPEARE: KnownText = KnownText {
    name: "shakespeare",
    site: "https://raw.githubusercontent.com",
    repository: "karpathy/char-rnn",
    commit: "d1d7aa34fdb3626174bce1d753e6cc6845ce7087",
    file: "data/tinyshakespeare/input.txt",
    size: 1_115_394,
    sha256: "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
};

/// All of them, by name.
pub const KNOWN_TEXTS: &[(&str, KnownText)] = &[(SHAKESPEARE.name, SHAKESPEARE)];

impl KnownText {
    /// The text's address at its site, or at another that has it at the same path.
    #[must_use]
    pub fn address(&self, site: Option<&str>) -> String {
        let Self { repository, commit, file, .. } = self;
        format!("{}/{repository}/{commit}/{file}", site.unwrap_or(self.site).trim_end_matches('/'))
    }

    /// The text, verified. `site` is one other than its own.
    ///
    /// # Errors
    /// When it cannot be reached, no request may be made, or the content is another.
    pub fn fetch(
        &self,
        site: Option<&str>,
        options: &HubOptions,
        observer: &dyn Observer,
    ) -> anyhow::Result<String> {
        let pin = Pin {
            id: self.repository.into(),
            revision: self.commit.into(),
            file: self.file.into(),
            size: self.size,
            sha256: Some(self.sha256.into()),
            license: "public domain".into(),
        };
        let content = options.connect(observer)?.fetch(site.unwrap_or(self.site), &pin)?;
        String::from_utf8(content).context(self.name)
    }
}
