//! Makes text from a prompt safe and measurable for a terminal.
//!
//! A token may contain anything: line ends, escape sequences that repaint the screen, marks that reorder a
//! line, characters that take two columns or none. This module turns each into something visible of known width.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The side of its column to which text is aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Align {
    /// Spaces follow the text.
    #[default]
    Left,
    /// Spaces come before the text, as for numbers.
    Right,
}

/// A token in visible form: each space as `·`, and all else as in [`visible_text`].
///
/// This is for reading and cannot be reversed: a token that is itself `·` looks like a space.
#[must_use]
pub fn visible_token(token: &str) -> String {
    visible(token, '·')
}

/// Text without anything that a terminal would act on. Spaces stay.
///
/// A line feed becomes `⏎`, a tab `⇥`, any other ASCII control its picture (`␛` for escape), and every
/// other character without a visible shape (C1 controls, joiners, direction marks, variation
/// selectors, unusual spaces, unassigned and private code points) `\u{…}`. A combining mark stays on
/// its letter; without a letter, it goes on `◌`. The result contains no control character, and applying
/// this function again changes nothing.
#[must_use]
pub fn visible_text(text: &str) -> String {
    visible(text, ' ')
}

/// Text for reading on a terminal: line ends and tabs stay, and so does everything that only changes how letters look, such
/// as the joiners of emoji.
///
/// Characters that a terminal would act upon become visible, as in [`visible_text`]: all other control characters (`␛` for
/// escape, `␍` for carriage return, `\u{9b}` for a C1 control), and the embeddings, overrides and isolates that reorder a line.
#[must_use]
pub fn visible_lines(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        let reorders = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if reorders || c.is_control() && c != '\n' && c != '\t' {
            out += &visible_text(c.encode_utf8(&mut [0; 4]));
        } else {
            out.push(c);
        }
    }
    out
}

fn visible(text: &str, space: char) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            ' ' => out.push(space),
            '\n' => out.push('⏎'),
            '\t' => out.push('⇥'),
            '\0'..='\x1f' => out.push(char::from_u32(0x2400 + u32::from(c)).unwrap_or('�')),
            '\x7f' => out.push('␡'),
            '!'..='~' => out.push(c),
            _ if !has_shape(c) => out.extend(c.escape_unicode()),
            _ => {
                if out.is_empty() && c.width() == Some(0) {
                    out.push('◌');
                }
                out.push(c);
            }
        }
    }
    out
}

/// Whether a character beyond ASCII shows up as itself.
pub(crate) fn has_shape(c: char) -> bool {
    // Unicode's `Default_Ignorable_Code_Point`: invisible, or only changes how its neighbors look.
    let ignorable = matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
        | '\u{fff0}'..='\u{fff8}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}');
    // The standard library's own table decides what `{:?}` escapes. The letter in front keeps it from escaping
    // combining marks, which it only does at the start of a string.
    !ignorable && String::from_iter(['a', c]).escape_debug().count() == 2
}

/// The columns that `text` takes in a terminal (Unicode Annex 11): 2 for CJK and emoji, 0 for marks.
#[must_use]
pub fn display_width(text: &str) -> usize {
    text.width()
}

/// `text` cut to at most `columns`, with `…` at the end if something is missing.
///
/// It never halves a character that is two columns wide, so the result may be one column short.
#[must_use]
pub fn fit(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let Some(room) = columns.checked_sub(1) else { return String::new() };
    let mut end = 0;
    for (i, c) in text.char_indices() {
        let next = i + c.len_utf8();
        if text[..next].width() > room {
            break;
        }
        end = next;
    }
    format!("{}…", &text[..end])
}

/// `text` in lines of at most `columns`, broken at spaces; a longer word has a line of its own.
#[must_use]
pub fn wrap(text: &str, columns: usize) -> String {
    let mut out = String::new();
    let mut used = 0;
    for (i, word) in text.split(' ').enumerate() {
        let breaks = used > 0 && used + 1 + word.width() > columns;
        if i > 0 {
            out.push(if breaks { '\n' } else { ' ' });
        }
        used = if breaks || i == 0 { word.width() } else { used + 1 + word.width() };
        out += word;
    }
    out
}

/// `text` padded with spaces to `columns`; longer text stays as it is (see [`fit`]).
#[must_use]
pub fn pad(text: &str, columns: usize, align: Align) -> String {
    let spaces = " ".repeat(columns.saturating_sub(text.width()));
    match align {
        Align::Left => format!("{text}{spaces}"),
        Align::Right => format!("{spaces}{text}"),
    }
}

/// A text as one word of a shell.
#[must_use]
pub fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./:@%+=,-".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Strings that a view has to survive.
    pub(crate) const NASTY: [&str; 28] = [
        "",
        " ",
        "a",
        " the",
        "  four  spaces  ",
        "\n",
        "\r\n",
        "\t\0\x07\x7f",
        "\x1b[31mred\x1b[0m",
        "\x1b]0;title\x07",
        "\x1b[2J\x1b[H",
        "\u{9b}31m",
        "漢字かな",
        "한국어",
        "ｗｉｄｅ",
        "👍🏽",
        "👩‍👩‍👧‍👦",
        "❤\u{fe0f}",
        "🇩🇪",
        "e\u{301}a\u{308}",
        "\u{301}",
        "Z\u{351}\u{351}\u{351}\u{351}\u{351}\u{351}",
        "\u{202e}reversed\u{2066}",
        "\u{200b}\u{feff}\u{ad}\u{3164}",
        "שלום لا",
        "\u{fffd}\u{fffd}",
        "\u{1100}\u{1161}\u{11a8}\u{1161}",
        "averyveryverylongtokenthatneverends",
    ];

    /// Draws numbers for a test: splitmix64, the same on every run.
    pub(crate) fn draw(state: &mut u64, below: usize) -> usize {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) >> 16).unwrap_or(0) % below
    }

    #[test]
    fn shows_what_has_no_shape() {
        for (token, shown) in [
            (" the", "·the"),
            ("a b ", "a·b·"),
            ("\n\n", "⏎⏎"),
            ("\r\n\t", "␍⏎⇥"),
            ("\x1b[31m\0\x7f", "␛[31m␀␡"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("\u{200d}\u{202e}", "\\u{200d}\\u{202e}"),
            ("\u{a0}\u{3000}\u{2028}", "\\u{a0}\\u{3000}\\u{2028}"),
            ("\u{3164}\u{fe0f}\u{34f}", "\\u{3164}\\u{fe0f}\\u{34f}"),
            ("\u{301}e\u{301}", "◌\u{301}e\u{301}"),
            ("it's \"ok\" \\n", "it's·\"ok\"·\\n"),
            ("漢 é ß 👍 \u{fffd}", "漢·é·ß·👍·\u{fffd}"),
        ] {
            assert_eq!(visible_token(token), shown, "{token:?}");
        }
        assert_eq!(visible_text("a b\n\x1b"), "a b⏎␛");
    }

    #[test]
    fn nothing_that_a_terminal_acts_upon_is_left() {
        for c in '\0'..=char::MAX {
            let shown = visible_text(&format!("{c}x"));
            assert!(shown.chars().all(|s| !s.is_control() && s != '\u{2028}' && s != '\u{2029}'), "{c:?}");
            assert_eq!(visible_text(&shown), shown, "{c:?}");
            assert!(display_width(&shown) > 1, "{c:?} is seen");
            // A table adds up the widths of its cells, so a neighbor after a space must not change them.
            assert_eq!(display_width(&format!("{shown} {shown}")), 2 * display_width(&shown) + 1, "{c:?}");
        }
    }

    #[test]
    fn a_terminal_gets_lines_and_tabs_and_nothing_else_that_it_acts_upon() {
        for (text, shown) in [
            ("ROMEO:\n\tBut soft! — é 漢", "ROMEO:\n\tBut soft! — é 漢"),
            ("a\x1b]0;title\x07b", "a␛]0;title␇b"),
            ("a\rb\x08c\x7f\0", "a␍b␈c␡␀"),
            ("\u{9b}2J\u{85}", "\\u{9b}2J\\u{85}"),
            ("\u{202e}desrever\u{2066}", "\\u{202e}desrever\\u{2066}"),
            ("👩\u{200d}👧 ❤\u{fe0f} e\u{301}\u{a0}x", "👩\u{200d}👧 ❤\u{fe0f} e\u{301}\u{a0}x"),
        ] {
            assert_eq!(visible_lines(text), shown, "{text:?}");
        }
        for c in '\0'..=char::MAX {
            let shown = visible_lines(c.encode_utf8(&mut [0; 4]));
            assert!(shown.chars().all(|s| !s.is_control() || s == c && "\n\t".contains(c)), "{c:?}");
        }
    }

    #[test]
    fn fits_by_columns_and_never_beyond() {
        assert_eq!(fit("attention", 9), "attention");
        assert_eq!(fit("attention", 8), "attenti…");
        assert_eq!(fit("漢字かな", 8), "漢字かな");
        assert_eq!(fit("漢字かな", 7), "漢字か…");
        assert_eq!(fit("漢字かな", 6), "漢字…"); // one column short: か does not fit
        assert_eq!(fit("e\u{301}e\u{301}e\u{301}", 2), "e\u{301}…");
        assert_eq!((fit("ab", 1), fit("ab", 0), fit("", 0)), ("…".into(), String::new(), String::new()));
        for text in NASTY.map(visible_token) {
            for columns in 0..24 {
                let cut = fit(&text, columns);
                assert!(display_width(&cut) <= columns, "{cut:?} in {columns}");
                assert_eq!(cut == text, display_width(&text) <= columns, "{text:?} in {columns}");
                assert_eq!(display_width(&pad(&cut, columns, Align::Left)), columns);
                assert_eq!(display_width(&pad(&cut, columns, Align::Right)), columns);
            }
        }
    }

    #[test]
    fn words_of_a_shell_are_quoted_where_they_need_it() {
        let words = ["models/gpt2", "a b", "it's; rm -rf ~", "", "$(x)"].map(shell_word);
        assert_eq!(words, ["models/gpt2", "'a b'", "'it'\\''s; rm -rf ~'", "''", "'$(x)'"]);
    }

    #[test]
    fn pads_on_the_side_asked_for() {
        assert_eq!(pad("漢", 4, Align::Left), "漢  ");
        assert_eq!(pad("漢", 4, Align::Right), "  漢");
        assert_eq!(pad("long", 2, Align::Right), "long");
    }
}
