//! The examples of each task, made from the rows of its data set.

use super::data::DataRow;
use super::wikitext::{detokenized, is_space, word_count};

/// An example: what the model is asked, and which answer is right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EvalExample {
    /// Asks how probable `target` is after `context`, and whether the model would say it.
    LastWord { context: String, target: String },
    /// Asks for the most probable choice after `context`.
    Choices { context: String, choices: Vec<AnswerChoice>, answer: usize },
    /// Asks how probable a whole text is.
    Text { text: String, words: usize, bytes: usize },
}

/// A choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AnswerChoice {
    /// The text after the context, with what separates them.
    pub(super) text: String,
    /// The number of characters of the choice alone, by which `acc_norm` divides.
    pub(super) length: usize,
}

/// The fields of rows that hold an example's parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ExampleParts {
    /// The context: a text with the names of fields in `{{..}}`.
    pub(super) context: String,
    /// The field with the list of choices; none where the answer itself is to be predicted.
    pub(super) choices: Option<String>,
    /// The field with the answer.
    pub(super) answer: String,
    /// Stands between the context and a choice.
    pub(super) delimiter: String,
}

impl AnswerChoice {
    fn new(delimiter: &str, text: &str) -> Self {
        Self { text: format!("{delimiter}{text}"), length: text.chars().count() }
    }
}

/// LAMBADA: the last word of a text, as what follows its last space.
pub(super) fn lambada(row: &DataRow) -> anyhow::Result<EvalExample> {
    let text = row.text("text")?;
    let (context, last) = text.rsplit_once(' ').unwrap_or(("", text));
    Ok(EvalExample::LastWord { context: context.to_owned(), target: format!(" {last}") })
}

/// HellaSwag: the ending of a scene, after its activity.
pub(super) fn hellaswag(row: &DataRow) -> anyhow::Result<EvalExample> {
    let context = format!("{} {}", row.text("ctx_a")?, capitalized(row.text("ctx_b")?));
    let context = cleaned(&format!("{}: {context}", row.text("activity_label")?));
    let endings: Vec<String> = row.texts("endings")?.into_iter().map(cleaned).collect();
    let answer = row.choice("label", &endings.iter().map(String::as_str).collect::<Vec<_>>())?;
    let choices = endings.iter().map(|ending| AnswerChoice::new(" ", ending)).collect();
    Ok(EvalExample::Choices { context, choices, answer })
}

/// BLiMP: of two sentences, the grammatical one.
pub(super) fn blimp(row: &DataRow) -> anyhow::Result<EvalExample> {
    let choices = [row.text("sentence_good")?, row.text("sentence_bad")?];
    let choices = choices.iter().map(|sentence| AnswerChoice::new(" ", sentence)).collect();
    Ok(EvalExample::Choices { context: String::new(), choices, answer: 0 })
}

/// WikiText: a whole article. Words and bytes are those of the text with its tokenizer's spaces.
pub(super) fn wikitext(row: &DataRow) -> anyhow::Result<EvalExample> {
    let page = row.text("page")?;
    Ok(EvalExample::Text { text: detokenized(page), words: word_count(page), bytes: page.len() })
}

/// A text of one's own, as it stands.
pub(super) fn plain_text(row: &DataRow) -> anyhow::Result<EvalExample> {
    let text = row.text("text")?;
    Ok(EvalExample::Text { text: text.to_owned(), words: word_count(text), bytes: text.len() })
}

impl ExampleParts {
    /// The example of a row.
    pub(super) fn example(&self, row: &DataRow) -> anyhow::Result<EvalExample> {
        let context = self.context(row)?;
        let Some(field) = &self.choices else {
            let target = format!("{}{}", self.delimiter, row.text(&self.answer)?);
            return Ok(EvalExample::LastWord { context, target });
        };
        let texts = row.texts(field)?;
        if texts.is_empty() {
            anyhow::bail!("{}: the field {field:?} lists no choice; expected one at least", row.place);
        }
        let answer = row.choice(&self.answer, &texts)?;
        let choices = texts.iter().map(|text| AnswerChoice::new(&self.delimiter, text)).collect();
        Ok(EvalExample::Choices { context, choices, answer })
    }

    /// The context, with the fields that it names.
    fn context(&self, row: &DataRow) -> anyhow::Result<String> {
        let mut context = String::new();
        let mut rest = self.context.as_str();
        while let Some((before, after)) = rest.split_once("{{") {
            let Some((name, following)) = after.split_once("}}") else { break };
            context.push_str(before);
            context.push_str(row.text(name.trim())?);
            rest = following;
        }
        Ok(context + rest)
    }
}

/// The first character in upper case, all others in lower case.
fn capitalized(text: &str) -> String {
    let mut rest = text.chars();
    let first = rest.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    first + &rest.as_str().to_lowercase()
}

/// A text of WikiHow without its marks.
fn cleaned(text: &str) -> String {
    let text = text.trim_matches(is_space).replace(" [title]", ". ");
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    // A mark does not span lines.
    while let Some((before, after)) = rest.split_once('[') {
        out.push_str(before);
        if let Some((_, following)) = after.split_once(']').filter(|(inside, _)| !inside.contains('\n')) {
            rest = following;
        } else {
            out.push('[');
            rest = after;
        }
    }
    (out + rest).replace("  ", " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_last_word_follows_the_last_space() -> anyhow::Result<()> {
        for (text, context, target) in [
            ("to be or not", "to be or", " not"),
            ("two  spaces", "two ", " spaces"),
            ("ends in a space ", "ends in a space", " "),
            ("What", "", " What"),
            ("a line\nof two", "a line\nof", " two"),
        ] {
            let example = lambada(&DataRow::of(json!({"text": text})))?;
            assert_eq!(example, EvalExample::LastWord { context: context.into(), target: target.into() });
        }
        Ok(())
    }

    #[test]
    fn marks_of_wikihow_are_removed() {
        for (text, expected) in [
            (" How to bow [title] Bend. [step] Stand ", "How to bow. Bend. Stand"),
            ("a [b\nc] d", "a [b\nc] d"),
            ("a [[b] c] d", "a c] d"),
            ("[a][b]c", "c"),
            ("open [", "open ["),
            ("a   b", "a  b"),
        ] {
            assert_eq!(cleaned(text), expected, "{text:?}");
        }
        assert_eq!(capitalized("hE strikes the LORD"), "He strikes the lord");
        assert_eq!(capitalized("élan Vital"), "Élan vital");
        assert_eq!(capitalized(""), "");
    }
}
