//! What a commit looks like.

/// Whether `revision` is the full hash of a commit.
pub(crate) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::is_commit;

    #[test]
    fn a_commit_is_forty_hexadecimal_digits() {
        assert!(is_commit(&"0a".repeat(20)));
        for other in
            ["0a".repeat(19), "0a".repeat(21), format!("a{}", "g".repeat(39)), format!("{}/", "a".repeat(39))]
        {
            assert!(!is_commit(&other), "{other}");
        }
    }
}
