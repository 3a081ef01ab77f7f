//! Tasks that papers on circuits use, as pairs of texts in a model's own vocabulary.

use super::pair_inputs::{Answer, Answers, PairInput};
use super::pairs::spelled;
use super::prompt::Content;
use crate::words::Choices;
use anyhow::bail;
use gpt2_loader::Tokenizer;
use rand::Rng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// A kind of task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// Who gets it: of two names, the one that is not repeated. The corrupted text has three other names (Wang et al. 2022,
    /// "Interpretability in the Wild", arXiv 2211.00593).
    Ioi,
    /// A year later than the one in the text; the corrupted text has the year 01, after which every year will do (Hanna et al. 2023,
    /// "How does GPT-2 compute greater-than?", arXiv 2305.00586).
    GreaterThan,
    /// Random tokens, and their beginning once more: the answer is the token that comes next in the first round. The
    /// corrupted text has another token in that place (Olsson et al. 2022, "In-context Learning and Induction Heads",
    /// arXiv 2209.11895). Any vocabulary of 14 tokens will do.
    #[default]
    Induction,
    /// She or he, by the name; the corrupted text has a name of the other kind (Mathwin et al. 2023, "Identifying a Preliminary Circuit
    /// for Predicting Gendered Pronouns in GPT-2 Small").
    Pronouns,
}

/// Tasks by name.
pub const TASKS: &Choices<Task> = &[
    ("ioi", Task::Ioi),
    ("greater-than", Task::GreaterThan),
    ("induction", Task::Induction),
    ("pronouns", Task::Pronouns),
];

const NAMES: [&str; 30] = [
    "Mary", "John", "Tom", "James", "Dan", "Martin", "Amy", "Sarah", "Anna", "Kate", "David", "Paul",
    "Michael", "Robert", "Laura", "Lisa", "Emily", "Alice", "Mark", "Peter", "Simon", "Jack", "Adam", "Alex",
    "Emma", "Rachel", "Maria", "Jane", "Steve", "Kevin",
];
const PLACES: [&str; 10] =
    ["store", "park", "school", "office", "hospital", "restaurant", "garden", "station", "house", "beach"];
const THINGS: [&str; 8] = ["drink", "book", "ring", "letter", "ball", "key", "gift", "basket"];
/// `[A]` and `[B]` are the two names in either order, `[S]` the one that gives.
const GIVING: [&str; 4] = [
    "When[A] and[B] walked to the[PLACE],[S] gave a[THING] to",
    "After[A] and[B] had met at the[PLACE],[S] handed a[THING] to",
    "While[A] and[B] were at the[PLACE],[S] passed a[THING] to",
    "Then[A] and[B] came back from the[PLACE], and[S] brought a[THING] to",
];
const EVENTS: [&str; 10] =
    ["war", "siege", "voyage", "reign", "drought", "strike", "trial", "dispute", "famine", "journey"];
const WOMEN: [&str; 12] =
    ["Mary", "Anna", "Sarah", "Laura", "Lisa", "Emily", "Alice", "Emma", "Rachel", "Maria", "Jane", "Kate"];
const MEN: [&str; 12] =
    ["John", "Tom", "James", "David", "Paul", "Michael", "Robert", "Mark", "Peter", "Simon", "Jack", "Adam"];
const TELLING: [&str; 4] = [
    "Everyone could see that[NAME] was tired, because",
    "The letter was from[NAME], and in it",
    "Nobody had told[NAME] the news before",
    "As soon as[NAME] reached the door,",
];
/// Words that a vocabulary must have, at least this many of each list.
const ENOUGH: usize = 6;
/// Tokens of an induction text before the repetition, and of the repetition.
const RANDOM: usize = 12;

impl Task {
    /// `count` pairs in the words of a vocabulary. The same seed gives the same pairs.
    ///
    /// # Errors
    /// When the vocabulary breaks up the words that the task needs, with those words, or has too few tokens.
    pub fn pairs(self, tokenizer: &Tokenizer, count: usize, seed: u64) -> anyhow::Result<Vec<PairInput>> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let words = Words { tokenizer };
        match self {
            Self::Ioi => {
                let names = words.single("names", &NAMES)?;
                let places = words.single("places", &PLACES)?;
                let things = words.single("things", &THINGS)?;
                (0..count).map(|_| ioi(&mut rng, &names, &places, &things)).collect()
            }
            Self::GreaterThan => {
                let events = words.single("events", &EVENTS)?;
                let centuries = words.centuries()?;
                (0..count).map(|_| greater_than(&mut rng, &events, &centuries)).collect()
            }
            Self::Induction => (0..count).map(|_| induction(&mut rng, tokenizer)).collect(),
            Self::Pronouns => {
                let women = words.single("names", &WOMEN)?;
                let men = words.single("names", &MEN)?;
                words.all("pronouns", &["she", "he"])?;
                Ok((0..count).map(|_| pronouns(&mut rng, &women, &men)).collect())
            }
        }
    }
}

/// One of a list.
fn one<'a>(rng: &mut ChaCha8Rng, list: &[&'a str]) -> &'a str {
    list.choose(rng).copied().unwrap_or_default()
}

/// A list of one answer, so that all lines of a file have lists.
fn only(answer: Answer) -> Answers {
    Answers::Several(vec![answer])
}

/// The template with words in it; each gets a space before it.
fn filled(template: &str, words: &[(&str, &str)]) -> String {
    words.iter().fold(template.to_owned(), |text, (place, word)| text.replace(place, &format!(" {word}")))
}

fn ioi(rng: &mut ChaCha8Rng, names: &[&str], places: &[&str], things: &[&str]) -> anyhow::Result<PairInput> {
    let five: Vec<&str> = names.choose_multiple(rng, 5).copied().collect();
    let [giver, receiver, others @ ..] = &five[..] else { bail!("too few names") };
    let template = one(rng, &GIVING);
    let rest = [("[PLACE]", one(rng, places)), ("[THING]", one(rng, things))];
    let (first, second) = if rng.random() { (giver, receiver) } else { (receiver, giver) };
    let text = |a: &str, b: &str, s: &str| {
        filled(template, &[&[("[A]", a), ("[B]", b), ("[S]", s)], &rest[..]].concat())
    };
    Ok(PairInput {
        clean: Content::Text(text(first, second, giver)),
        corrupted: Content::Text(text(others[0], others[1], others[2])),
        correct: only(Answer::Text(format!(" {receiver}"))),
        incorrect: Some(only(Answer::Text(format!(" {giver}")))),
    })
}

/// A century, and its years that are written as its token and one more.
struct Century {
    century: u32,
    years: Vec<String>,
}

fn greater_than(rng: &mut ChaCha8Rng, events: &[&str], centuries: &[Century]) -> anyhow::Result<PairInput> {
    let Some(Century { century, years }) = centuries.choose(rng) else { bail!("no century") };
    // Neither the first nor the last, so that there are answers on both sides.
    let at = rng.random_range(1..years.len() - 1);
    let event = one(rng, events);
    let text = |year: &str| {
        Content::Text(format!("The {event} lasted from the year {century}{year} to the year {century}"))
    };
    let answers = |years: &[String]| Answers::Several(years.iter().cloned().map(Answer::Text).collect());
    Ok(PairInput {
        clean: text(&years[at]),
        corrupted: text("01"),
        correct: answers(&years[at + 1..]),
        incorrect: Some(answers(&years[..=at])),
    })
}

fn induction(rng: &mut ChaCha8Rng, tokenizer: &Tokenizer) -> anyhow::Result<PairInput> {
    let v = u32::try_from(tokenizer.vocab_size())?;
    let mut ids: Vec<u32> = (0..v).filter(|id| Some(*id) != tokenizer.end_of_text()).collect();
    if ids.len() <= RANDOM {
        bail!("this vocabulary has {} tokens, and {} are needed", ids.len(), RANDOM + 1);
    }
    let (tokens, _) = ids.partial_shuffle(rng, RANDOM + 1);
    let wrong = tokens[RANDOM];
    let tokens = tokens[..RANDOM].to_vec();
    let at = rng.random_range(1..RANDOM);
    let mut other = tokens.clone();
    other[at] = wrong;
    // It begins again, up to the token before.
    Ok(PairInput {
        clean: Content::Ids([&tokens[..], &tokens[..at]].concat()),
        corrupted: Content::Ids([&other[..], &tokens[..at]].concat()),
        correct: only(Answer::Id(tokens[at])),
        incorrect: Some(only(Answer::Id(wrong))),
    })
}

fn pronouns(rng: &mut ChaCha8Rng, women: &[&str], men: &[&str]) -> PairInput {
    let template = one(rng, &TELLING);
    let names = [one(rng, women), one(rng, men)];
    let answers = [" she", " he"].map(|word| only(Answer::Text(word.to_owned())));
    let text = |name: &str| Content::Text(filled(template, &[("[NAME]", name)]));
    let [she, he] = answers;
    let is_woman = rng.random();
    let (clean, corrupted) = if is_woman { (names[0], names[1]) } else { (names[1], names[0]) };
    let (correct, incorrect) = if is_woman { (she, he) } else { (he, she) };
    PairInput { clean: text(clean), corrupted: text(corrupted), correct, incorrect: Some(incorrect) }
}

/// Finds the words that a vocabulary has as one token.
struct Words<'a> {
    tokenizer: &'a Tokenizer,
}

impl Words<'_> {
    fn tokens(&self, text: &str) -> anyhow::Result<Vec<u32>> {
        Ok(self.tokenizer.encode(text)?)
    }

    /// The words that are one token with a space before them. Error if they are fewer than `ENOUGH`.
    fn single<'a>(&self, what: &str, words: &[&'a str]) -> anyhow::Result<Vec<&'a str>> {
        let mut found = vec![];
        for word in words {
            if self.tokens(&format!(" {word}"))?.len() == 1 {
                found.push(*word);
            }
        }
        if found.len() < ENOUGH {
            bail!(
                "this vocabulary has {} of the task's {} {what} as one token, and {ENOUGH} are needed: it breaks{}; `induction` works with any vocabulary",
                found.len(),
                words.len(),
                self.broken(words)?
            );
        }
        Ok(found)
    }

    /// Refuses words that are not one token.
    fn all(&self, what: &str, words: &[&str]) -> anyhow::Result<()> {
        let broken = self.broken(words)?;
        if broken.is_empty() { Ok(()) } else { bail!("this vocabulary breaks the task's {what}:{broken}") }
    }

    /// A few of the words that are not one token, with their parts.
    fn broken(&self, words: &[&str]) -> anyhow::Result<String> {
        const SHOWN: usize = 5;
        let mut text = String::new();
        let mut count = 0;
        for word in words {
            let ids = self.tokens(&format!(" {word}"))?;
            if ids.len() == 1 {
                continue;
            }
            if count < SHOWN {
                let comma = if count == 0 { "" } else { "," };
                write!(text, "{comma} {word} into {}", spelled(&ids, self.tokenizer))?;
            }
            count += 1;
        }
        if count > SHOWN {
            write!(text, " and {} more", count - SHOWN)?;
        }
        Ok(text)
    }

    /// The centuries that begin years of two tokens, the year 01 among them.
    fn centuries(&self) -> anyhow::Result<Vec<Century>> {
        let mut centuries = vec![];
        for century in 11..19u32 {
            let first = self.tokens(&format!(" {century}"))?;
            let mut years = vec![];
            for year in (1..100).map(|year| format!("{year:02}")) {
                let second = self.tokens(&year)?;
                let both = self.tokens(&format!(" {century}{year}"))?;
                if second.len() == 1 && both == [first.clone(), second].concat() {
                    years.push(year);
                }
            }
            if first.len() == 1 && years.len() >= ENOUGH && years[0] == "01" {
                centuries.push(Century { century, years });
            }
        }
        if centuries.is_empty() {
            bail!(
                "this vocabulary does not write years as a century and two digits: it breaks 1732 into {}; `induction` works with any \
                 vocabulary",
                spelled(&self.tokens(" 1732")?, self.tokenizer)
            );
        }
        Ok(centuries)
    }
}

#[cfg(test)]
mod tests {
    use super::super::pair;
    use super::*;
    use crate::texts::AnswerSides;

    use gpt2_model::Config;
    use gpt2_model::analysis::Metric;

    /// Each pair as `pair` reads its line with GPT-2's vocabulary.
    fn read(
        task: Task,
        count: usize,
        seed: u64,
    ) -> anyhow::Result<Vec<(PairInput, gpt2_circuits::discovery::Pair)>> {
        let tokenizer = Tokenizer::gpt2();
        let pairs = task.pairs(&tokenizer, count, seed)?.into_iter();
        pairs
            .map(|of| {
                Ok((
                    of.clone(),
                    pair(&serde_json::to_string(&of)?, BOTH, &|| Ok(&tokenizer), &Config::gpt2(), None)?,
                ))
            })
            .collect()
    }

    fn wrong(pair: &PairInput) -> &[Answer] {
        pair.incorrect.as_ref().map_or(&[], Answers::all)
    }

    const BOTH: AnswerSides = AnswerSides { right: true, wrong: true };

    #[test]
    fn every_task_has_pairs_in_gpt2s_vocabulary_that_differ_by_seed() -> anyhow::Result<()> {
        for task in [Task::Ioi, Task::GreaterThan, Task::Induction, Task::Pronouns] {
            let once = read(task, 60, 0)?;
            let other = read(task, 60, 1)?;
            assert!(
                once.iter().map(|(of, _)| of).eq(read(task, 60, 0)?.iter().map(|(of, _)| of)),
                "{task:?}"
            );
            assert_ne!(once[0].0, other[0].0, "{task:?}");
            for (text, pair) in once.iter().chain(&other) {
                assert_ne!(pair.clean, pair.corrupt, "{text:?}");
            }
        }
        Ok(())
    }

    #[test]
    fn the_answers_are_those_of_the_task() -> anyhow::Result<()> {
        for (text, pair) in read(Task::Ioi, 100, 3)? {
            let (Content::Text(clean), Content::Text(corrupted)) = (&text.clean, &text.corrupted) else {
                panic!("words")
            };
            let ([Answer::Text(right)], [Answer::Text(giver)]) = (text.correct.all(), wrong(&text)) else {
                panic!("{text:?}")
            };
            // The one who gives is named twice, the one who gets it once, and neither in the corrupted text.
            let times = |of: &str, name: &str| of.matches(name).count();
            assert_eq!((times(clean, giver), times(clean, right)), (2, 1), "{clean}");
            assert_eq!((times(corrupted, giver), times(corrupted, right)), (0, 0), "{corrupted}");
            // Three names differ, and nothing else.
            assert_eq!(pair.clean.iter().zip(&pair.corrupt).filter(|(a, b)| a != b).count(), 3);
        }
        let mut centuries = vec![];
        for (text, pair) in read(Task::GreaterThan, 200, 3)? {
            let Content::Text(clean) = &text.clean else { panic!("words") };
            let year = clean.split("year ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a year");
            let century = &year[..2];
            let year = year[2..].parse::<u32>()?;
            centuries.push(century.to_owned());
            let number = |answer: &Answer| match answer {
                Answer::Text(word) => word.parse::<u32>().expect("a year"),
                Answer::Id(id) => *id,
            };
            assert!(text.correct.all().iter().all(|answer| number(answer) > year), "{text:?}");
            assert!(wrong(&text).iter().all(|answer| number(answer) <= year), "{text:?}");
            assert!(
                matches!(&pair.metric, Metric::LogitDifference { answers, against } if answers.len() + against.len() > 50)
            );
        }
        centuries.sort();
        centuries.dedup();
        assert!(centuries.len() > 4, "{centuries:?}");
        for (text, _) in read(Task::Pronouns, 50, 3)? {
            let Content::Text(clean) = &text.clean else { panic!("words") };
            let is_woman = WOMEN.iter().any(|name| clean.contains(&format!(" {name}")));
            let expected = if is_woman { " she" } else { " he" };
            assert_eq!(text.correct.all(), [Answer::Text(expected.to_owned())], "{clean}");
        }
        Ok(())
    }
}
