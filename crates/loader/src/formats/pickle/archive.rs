//! Files of PyTorch 1.6 and later: a zip of uncompressed storages, and a pickle that names them.

use super::machine;
use super::object::Pickle;
use crate::error::refusal::Refusal;
use crate::stored::ZipEntry;
use std::io::{Cursor, Read};

/// The length of the header before an entry's data, without its name, and the place of the two sizes in it.
const LOCAL_HEADER: usize = 30;
const LOCAL_SIZES: usize = 18;

/// An archive and the pickle in it.
pub(super) struct Archive<'a> {
    zip: zip::ZipArchive<Cursor<&'a [u8]>>,
    bytes: &'a [u8],
    /// The storages lie in `<folder>/<key>`.
    folder: String,
}

impl<'a> Archive<'a> {
    /// Opens the archive, and reads its pickle of at most `longest` bytes.
    pub(super) fn open(bytes: &'a [u8], longest: u64) -> Result<(Self, Vec<u8>), Refusal> {
        let mut zip = zip::ZipArchive::new(Cursor::new(bytes)).map_err(|e| e.to_string())?;
        let names: Vec<String> = (0..zip.len())
            .filter_map(|i| zip.by_index_raw(i).ok()?.name().ok().map(std::borrow::Cow::into_owned))
            .collect();
        let is_pickle = |name: &&String| name.ends_with("/data.pkl") || *name == "data.pkl";
        let Some(pickle_name) = names.iter().find(is_pickle) else {
            return Err(Refusal::Unread(format!(
                "a zip archive with no data.pkl inside, so torch.save did not write it (it holds {}); expected weights that \
                 torch.save wrote",
                names.first().map_or("nothing", String::as_str)
            )));
        };
        if names.iter().any(|name| name.ends_with("/constants.pkl"))
            && names.iter().any(|name| name.contains("/code/"))
        {
            return Err(Refusal::Unread(
                "a TorchScript archive; load it with torch.jit.load and save its state_dict() with torch.save".into(),
            ));
        }
        let mut pickle = Vec::new();
        let entry = zip.by_name(pickle_name).map_err(|e| e.to_string())?;
        check_sizes(&entry, bytes)?;
        entry.take(longest + 1).read_to_end(&mut pickle).map_err(|e| e.to_string())?;
        if pickle.len() as u64 > longest {
            return Err(Refusal::Unread(format!(
                "{pickle_name} has more than {longest} bytes, too many for the names of a GPT-2"
            )));
        }
        let folder = pickle_name.trim_end_matches(".pkl").to_string();
        let mut archive = Self { zip, bytes, folder };
        archive.check_byte_order(&names)?;
        Ok((archive, pickle))
    }

    /// The values that the pickle describes.
    pub(super) fn read(pickle: &[u8]) -> Result<Pickle<'_>, String> {
        machine::read(pickle, "data.pkl")
    }

    /// PyTorch writes its machine's order into an entry beside the pickle since version 2.1.
    fn check_byte_order(&mut self, names: &[String]) -> Result<(), Refusal> {
        let Some(name) = names.iter().find(|name| *name == "byteorder" || name.ends_with("/byteorder"))
        else {
            return Ok(());
        };
        let mut order = String::new();
        let entry = self.zip.by_name(name).map_err(|e| e.to_string())?;
        entry.take(16).read_to_string(&mut order).map_err(|e| format!("{name}: {e}"))?;
        if order.trim() == "big" {
            return Err(big_endian());
        }
        Ok(())
    }

    /// Finds an uncompressed storage by its key.
    pub(super) fn storage(&mut self, key: &str) -> Result<ZipEntry, Refusal> {
        let name = format!("{}/{key}", self.folder);
        let entry = self.zip.by_name(&name).map_err(|e| format!("storage {name}: {e}"))?;
        if entry.compression() != zip::CompressionMethod::Stored {
            return Err(Refusal::Unread(format!(
                "storage {name} is compressed, and PyTorch stores its tensors plain; unpack the archive, and pack it again with \
                 `zip -0 -r`"
            )));
        }
        check_sizes(&entry, self.bytes)?;
        let len = self.bytes.len();
        let start = entry.data_start().ok_or("the archive does not say where its data lies")?;
        let to_usize = |n: u64| usize::try_from(n).map_err(|e| e.to_string());
        let (start, end) = (to_usize(start)?, to_usize(start.saturating_add(entry.size()))?);
        if end > len {
            return Err(format!("storage {name} ends at byte {end} of a file of {len} bytes").into());
        }
        Ok(ZipEntry { name, range: start..end, crc32: entry.crc32() })
    }
}

/// Numbers in the other order of bytes.
pub(super) fn big_endian() -> Refusal {
    Refusal::Unread(
        "weights of a big-endian machine; load them there with torch.load, and save them as safetensors, which is the same \
         everywhere"
            .into(),
    )
}

/// Refuses an entry whose sizes contradict one another: those of the archive's directory, and those that stand before its data.
fn check_sizes<R: Read>(entry: &zip::read::ZipFile<'_, R>, bytes: &[u8]) -> Result<(), String> {
    let (name, size, stored) =
        (entry.name().map_err(|e| e.to_string())?, entry.size(), entry.compressed_size());
    if entry.compression() == zip::CompressionMethod::Stored && size != stored {
        return Err(format!("{name} is stored plain, but the archive gives it {stored} bytes and {size}"));
    }
    let header =
        usize::try_from(entry.header_start()).ok().and_then(|at| bytes.get(at..)?.get(..LOCAL_HEADER));
    let field =
        |at: usize| header.and_then(|h| h.get(at..at + 4)?.try_into().ok()).map_or(0, u32::from_le_bytes);
    for (found, expected) in [(field(LOCAL_SIZES), stored), (field(LOCAL_SIZES + 4), size)] {
        // 0 says that the size follows the data, the largest number that it stands in a field for large files.
        if ![0, u32::MAX].contains(&found) && u64::from(found) != expected {
            return Err(format!("the archive gives {name} {expected} bytes, and its own header {found}"));
        }
    }
    Ok(())
}
