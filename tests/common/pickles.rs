//! Takes `pytorch_model.bin` apart and puts it together again with something wrong in it.

use crate::common::{Result, data};
use crate::folder::Folder;

pub(crate) const BIN: &str = "pytorch_model.bin";

/// The entries of an uncompressed zip, by name and in order.
pub(crate) type Entries = Vec<(String, Vec<u8>)>;

fn number(bytes: &[u8], at: usize, width: usize) -> usize {
    bytes[at..at + width].iter().rev().fold(0, |n, &b| n << 8 | usize::from(b))
}

/// The entries of a case's archive, read through its central directory.
pub(crate) fn entries(case: &str) -> Result<Entries> {
    let zip = std::fs::read(data(case).join(BIN))?;
    let central = zip.windows(4).enumerate().filter(|(_, w)| w == b"PK\x01\x02");
    let entries = central.map(|(at, _)| {
        let name = String::from_utf8_lossy(&zip[at + 46..at + 46 + number(&zip, at + 28, 2)]).into_owned();
        let size = number(&zip, at + 20, 4);
        let local = number(&zip, at + 42, 4);
        let start = local + 30 + number(&zip, local + 26, 2) + number(&zip, local + 28, 2);
        (name, zip[start..start + size].to_vec())
    });
    Ok(entries.collect())
}

fn crc32(data: &[u8]) -> u32 {
    let shift = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
    !data.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), shift))
}

/// An uncompressed zip of these entries with correct checksums, so that any damage is in the entries themselves.
pub(crate) fn zip(entries: &Entries) -> Result<Vec<u8>> {
    let mut file = vec![];
    let mut central = vec![];
    for (name, data) in entries {
        let size = u32::try_from(data.len())?;
        let offset = u32::try_from(file.len())?;
        // Version, flags, method, time, date; checksum, sizes; lengths of the name and of nothing extra.
        let mut fields = [20u16, 0, 0, 0, 0x21].map(u16::to_le_bytes).concat();
        fields.extend([crc32(data), size, size].map(u32::to_le_bytes).concat());
        fields.extend([u16::try_from(name.len())?, 0].map(u16::to_le_bytes).concat());
        file.extend([b"PK\x03\x04", &fields[..], name.as_bytes(), data].concat());
        central.extend(
            [b"PK\x01\x02\x14\0", &fields[..], &[0; 10], &offset.to_le_bytes(), name.as_bytes()].concat(),
        );
    }
    let count = u16::try_from(entries.len())?;
    let size = u32::try_from(central.len())?;
    let offset = u32::try_from(file.len())?;
    file.extend(central);
    file.extend([b"PK\x05\x06", &[0u16, 0, count, count].map(u16::to_le_bytes).concat()[..]].concat());
    file.extend([size, offset].map(u32::to_le_bytes).concat());
    file.extend([0, 0]);
    Ok(file)
}

/// The folder of the case `pickle`, with another pickle in its archive.
pub(crate) fn with_pickle(pickle: &[u8]) -> Result<Folder> {
    let mut entries = entries("pickle")?;
    entries[0].1 = pickle.to_vec();
    let folder = Folder::of("pickle")?;
    folder.write(BIN, zip(&entries)?)?;
    Ok(folder)
}
