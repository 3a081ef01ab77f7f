//! The interface between a page and the module in it, as a name that changes with it.

/// The files that say which functions the module has, what they take and what they return.
const SOURCES: [&str; 3] =
    [include_str!("module.rs"), include_str!("request.rs"), include_str!("token_path.rs")];

const NAME: [u8; 35] = *b"gpt2-web interface ................";

/// The name of the interface: a page runs a module of its own name alone. Comments and spaces do not change it.
pub const INTERFACE: &str = match std::str::from_utf8(&named(hashed())) {
    Ok(name) => name,
    Err(_) => panic!("hexadecimal digits"),
};

/// FNV-1a of the files' code.
const fn hashed() -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    let mut file = 0;
    while file < SOURCES.len() {
        let text = SOURCES[file].as_bytes();
        let mut at = 0;
        while at < text.len() {
            if at + 1 < text.len() && text[at] == b'/' && text[at + 1] == b'/' {
                while at < text.len() && text[at] != b'\n' {
                    at += 1;
                }
            } else {
                if !text[at].is_ascii_whitespace() {
                    hash = (hash ^ text[at] as u64).wrapping_mul(0x0100_0000_01b3);
                }
                at += 1;
            }
        }
        file += 1;
    }
    hash
}

const fn named(hash: u64) -> [u8; NAME.len()] {
    let mut name = NAME;
    let mut digit = 0;
    while digit < 16 {
        let [.., lowest] = (hash >> (4 * digit)).to_be_bytes();
        name[NAME.len() - 1 - digit] = b"0123456789abcdef"[(lowest & 15) as usize];
        digit += 1;
    }
    name
}
