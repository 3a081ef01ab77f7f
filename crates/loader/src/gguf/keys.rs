//! The keys of a GGUF file that is written.

/// Keys and their values.
#[derive(Default)]
pub(crate) struct Keys {
    pub(crate) bytes: Vec<u8>,
    pub(crate) count: u64,
}

impl Keys {
    fn key(&mut self, name: &str, kind: u32) {
        self.count += 1;
        put_text(&mut self.bytes, name);
        self.bytes.extend(kind.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, name: &str, value: u32) {
        self.key(name, 4);
        self.bytes.extend(value.to_le_bytes());
    }

    pub(crate) fn f32(&mut self, name: &str, value: f32) {
        self.key(name, 6);
        self.bytes.extend(value.to_le_bytes());
    }

    pub(crate) fn text(&mut self, name: &str, value: &str) {
        self.key(name, 8);
        put_text(&mut self.bytes, value);
    }

    fn list(&mut self, name: &str, kind: u32, len: usize) {
        self.key(name, 9);
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend((len as u64).to_le_bytes());
    }

    pub(crate) fn texts(&mut self, name: &str, values: &[String]) {
        self.list(name, 8, values.len());
        for value in values {
            put_text(&mut self.bytes, value);
        }
    }

    pub(crate) fn i32s(&mut self, name: &str, values: &[i32]) {
        self.list(name, 5, values.len());
        self.bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }
}

pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}
