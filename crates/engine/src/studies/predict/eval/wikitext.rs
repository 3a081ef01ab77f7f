//! The text of a WikiText article without its tokenizer's spaces, and its numbers of words and bytes, as the harness counts them.

/// White space as Python's regular expressions know it.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// The pieces that the runs of white space in a text separate: one more than there are runs.
pub(super) fn word_count(text: &str) -> usize {
    let mut runs = 0;
    let mut is_in_run = false;
    for c in text.chars() {
        runs += usize::from(is_space(c) && !is_in_run);
        is_in_run = is_space(c);
    }
    runs + 1
}

/// The article as ordinary text, by the harness' rules in their order.
pub(super) fn detokenized(page: &str) -> String {
    let text = page.replace("s '", "s'");
    let mut text = quoted_digits(&text);
    for (from, to) in [
        (" @-@ ", "-"),
        (" @,@ ", ","),
        (" @.@ ", "."),
        (" : ", ": "),
        (" ; ", "; "),
        (" . ", ". "),
        (" ! ", "! "),
        (" ? ", "? "),
        (" , ", ", "),
    ] {
        text = text.replace(from, to);
    }
    for (open, close) in [('(', ')'), ('[', ']'), ('{', '}'), ('"', '"'), ('\'', '\'')] {
        text = tightened(&text, open, close);
    }
    for (from, to) in [
        ("= = = =", "===="),
        ("= = =", "==="),
        ("= =", "=="),
        (" \u{b0} ", "\u{b0}"),
        (" \n", "\n"),
        ("\n ", "\n"),
        (" N ", " 1 "),
        (" 's", "'s"),
    ] {
        text = text.replace(from, to);
    }
    text
}

/// Replaces `/' 5/` by `/'[0-9]/`: the harness has this rule, slashes and brackets included.
fn quoted_digits(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("/' ") {
        let after = &rest[at + 3..];
        let is_digit = after.starts_with(|c: char| c.is_ascii_digit());
        if is_digit && after[1..].starts_with('/') {
            out.push_str(&rest[..at]);
            out.push_str("/'[0-9]/");
            rest = &after[2..];
        } else {
            out.push_str(&rest[..at + 3]);
            rest = after;
        }
    }
    out + rest
}

/// Removes white space inside pairs of marks, next to them.
fn tightened(text: &str, open: char, close: char) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(open) {
        let Some((inside, following)) = after.split_once(close) else { break };
        out.push_str(before);
        out.push(open);
        out.push_str(inside.trim_matches(is_space));
        out.push(close);
        rest = following;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_the_pieces_between_white_space() {
        for (text, count) in
            [("", 1), ("one", 1), (" one", 2), ("one ", 2), (" a  b\n\nc ", 5), (" ", 2), ("a\x1cb", 2)]
        {
            assert_eq!(word_count(text), count, "{text:?}");
        }
    }

    #[test]
    fn each_rule_applies_in_its_turn() {
        for (page, text) in [
            (
                "1610 @-@ 11 , 2 @,@ 283 or 1 @.@ 5 : so ; then . End ! why ? ok",
                "1610-11, 2,283 or 1.5: so; then. End! why? ok",
            ),
            ("( a ) [ b ] { c } \" d \" ' e '", "(a) [b] {c} \"d\" 'e'"),
            ("( a ( b ) c )", "(a ( b) c )"),
            ("(   ) (", "() ("),
            ("= = = = a = = = b = =", "==== a === b =="),
            ("20 \u{b0} C \n next N word", "20\u{b0}C\nnext 1 word"),
            ("the boats ' oars , the king 's", "the boats'oars, the king's"),
            ("/' 5/ /' x/ /' 5", "/'[0-9]/ /' x/ /' 5"),
        ] {
            assert_eq!(detokenized(page), text, "{page:?}");
        }
    }
}
