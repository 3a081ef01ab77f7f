//! [`Input`]: the unread bytes of a pickle. It uses a length only after checking that so many bytes exist.

pub(super) struct Input<'a>(pub(super) &'a [u8]);

impl<'a> Input<'a> {
    pub(super) fn bytes(&mut self, len: usize) -> Result<&'a [u8], String> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or_else(|| self.short(len))?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn array<const LEN: usize>(&mut self) -> Result<[u8; LEN], String> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or_else(|| self.short(LEN))?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn short(&self, len: usize) -> String {
        format!("cut short: {} of {len} bytes are there", self.0.len())
    }

    /// A length of four bytes, then as many bytes of UTF-8.
    pub(super) fn text(&mut self) -> Result<&'a str, String> {
        let len = u32::from_le_bytes(self.array()?);
        utf8(self.bytes(usize::try_from(len).map_err(|e| e.to_string())?)?)
    }

    /// UTF-8 that a newline ends.
    pub(super) fn line(&mut self) -> Result<&'a str, String> {
        let len = self.0.iter().position(|&byte| byte == b'\n').ok_or("a name without its end")?;
        let line = self.bytes(len)?;
        self.bytes(1)?;
        utf8(line)
    }

    /// A length of one byte, then as many bytes of an integer in two's complement.
    pub(super) fn long(&mut self) -> Result<i64, String> {
        let [len] = self.array()?;
        let bytes = self.bytes(len.into())?;
        if bytes.len() > 8 {
            return Err(format!("an integer of {len} bytes; a size has at most 8"));
        }
        let sign = if bytes.last().is_some_and(|&byte| byte >= 0x80) { -1 } else { 0 };
        Ok(bytes.iter().rev().fold(sign, |n, &byte| n << 8 | i64::from(byte)))
    }
}

fn utf8(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|e| e.to_string())
}
