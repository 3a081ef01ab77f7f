//! [`Hub::fetch`]: a file of any site whose content is known in advance, such as a text to train on.

use super::address::Origin;
use super::client::Client;
use super::{Event, Hub, ModelId, Pin};
use crate::error::LoadError;
use crate::error::hub_error::HubError;
use sha2::{Digest, Sha256};

impl Hub {
    /// Fetches a pinned file from a site that keeps it at `SITE/OWNER/NAME/REVISION/FILE`, as GitHub does, and returns its content once
    /// it is verified. It is not cached, and no token is sent.
    ///
    /// # Errors
    /// When the hub is set offline, the site cannot be reached, or its content is not the pinned one.
    pub fn fetch(&self, site: &str, pin: &Pin) -> Result<Vec<u8>, LoadError> {
        Ok(self.fetched(site, pin)?)
    }

    fn fetched(&self, site: &str, pin: &Pin) -> Result<Vec<u8>, HubError> {
        let Pin { id, revision, file, size, sha256, .. } = pin;
        let site = site.trim_end_matches('/');
        let url = format!("{site}/{id}/{revision}/{file}");
        if self.offline {
            return Err(HubError::Offline { url });
        }
        let refused = |reason: String| HubError::Endpoint { endpoint: site.to_owned(), reason };
        let uri = url.parse().map_err(|e: ureq::http::uri::InvalidUri| refused(e.to_string()))?;
        if Origin::of(&uri).is_none() {
            return Err(refused("expected an address that begins with https:// or http://".into()));
        }
        let owner = ModelId::parse(id).ok_or_else(|| refused(format!("{id} is no owner/name")))?;
        let hub = Self { endpoint: site.to_owned(), token: None, ..self.clone() };
        let expected = sha256.as_deref().unwrap_or_default();
        self.tell(&Event::Fetching { file, size: Some(*size), have: 0, kept: false })?;
        let content = Client::new(&hub, &owner)?.whole(&uri, *size, |content| {
            let found = hex::encode(Sha256::digest(content));
            let is_pinned = content.len() as u64 == *size && found == expected;
            (!is_pinned).then_some((expected.to_owned(), found))
        })?;
        self.tell(&Event::Fetched { file })?;
        Ok(content)
    }
}
