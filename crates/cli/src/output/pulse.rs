//! Signs of life from long work: on a terminal the seconds, once nothing else has shown for one; elsewhere a line every ten seconds.

use super::bars::new_bar;
use indicatif::{HumanBytes, HumanDuration, ProgressBar};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// The time between two looks at the clock.
pub(super) const BEAT: Duration = Duration::from_millis(250);
/// The silence after which a terminal shows the seconds.
const SILENCE: Duration = Duration::from_secs(1);
/// The time between two lines where stderr is no terminal.
const BETWEEN: Duration = Duration::from_secs(10);

/// Counted steps, and the bar that shows them.
#[derive(Debug)]
pub(super) struct StepsShown {
    pub(super) name: String,
    pub(super) bar: ProgressBar,
    done: u64,
    all: Option<u64>,
    /// The steps that were done when this run began to count.
    first: u64,
    began: Instant,
    /// Figures of the steps so far, to show beside them.
    figures: String,
}

impl StepsShown {
    pub(super) fn new(name: &str, done: u64, all: Option<u64>) -> Self {
        let bar = new_bar(all, &template(name, all)).with_position(done);
        // Steps of an earlier run took none of this one's time.
        bar.reset_eta();
        Self {
            name: name.to_owned(),
            bar,
            done,
            all,
            first: done,
            began: Instant::now(),
            figures: String::new(),
        }
    }

    pub(super) fn reach(&mut self, done: u64, all: Option<u64>) {
        self.done = done;
        self.all = all;
        if let Some(all) = all {
            self.bar.set_length(all);
        }
        self.bar.set_position(done);
    }

    pub(super) fn set_figures(&mut self, text: &str) {
        self.figures = format!(", {text}");
        self.bar.set_message(self.figures.clone());
    }

    /// `34 of 144 runs, about 12 seconds left`
    fn line(&self, now: Instant) -> String {
        let number = |n: u64| if self.name == "bytes" { HumanBytes(n).to_string() } else { n.to_string() };
        let unit = if self.name == "bytes" { String::new() } else { format!(" {}", self.name) };
        let took = now.duration_since(self.began);
        let here = self.done.saturating_sub(self.first);
        let Some(all) = self.all else {
            return format!("{}{unit} in {}{}", number(self.done), HumanDuration(took), self.figures);
        };
        let left = if here == 0 {
            String::new()
        } else {
            let rest = all.saturating_sub(self.done) as f64 / here as f64;
            format!(", about {} left", HumanDuration(took.mul_f64(rest)))
        };
        format!("{} of {}{unit}{left}{}", number(self.done), number(all), self.figures)
    }
}

fn template(steps: &str, all: Option<u64>) -> String {
    match (steps, all) {
        ("bytes", Some(_)) => "{bar:30} {bytes} of {total_bytes}, {eta} left{msg}".to_owned(),
        ("bytes", None) => "{bytes} read, {elapsed}{msg}".to_owned(),
        (_, Some(_)) => format!("{{bar:30}} {{pos}}/{{len}} {steps}, {{eta}} left{{msg}}"),
        (_, None) => format!("{{pos}} {steps}, {{elapsed}}{{msg}}"),
    }
}

/// A command at work.
#[derive(Debug)]
pub(super) struct Pulse {
    began: Instant,
    /// The time of the last line.
    told: Instant,
    on_terminal: bool,
    /// The seconds on a terminal.
    seconds: Option<ProgressBar>,
    /// Whether results have begun on the same terminal, where nothing may come between them.
    prints: bool,
    /// Whether a download shows a bar of its own.
    pub(super) has_other_bar: bool,
}

impl Pulse {
    pub(super) fn new(now: Instant) -> Self {
        let on_terminal = std::io::stderr().is_terminal();
        Self { began: now, told: now, on_terminal, seconds: None, prints: false, has_other_bar: false }
    }

    /// Another line was written.
    pub(super) fn told(&mut self, now: Instant) {
        self.told = now;
        self.clear();
    }

    /// Results begin.
    pub(super) fn prints(&mut self) {
        self.clear();
        self.prints |= std::io::stdout().is_terminal();
    }

    /// Takes the seconds off the terminal.
    pub(super) fn clear(&mut self) {
        if let Some(seconds) = self.seconds.take() {
            seconds.finish_and_clear();
        }
    }

    /// The line that is due, if stderr is no terminal; else shows the seconds where no bar is `shown`.
    pub(super) fn beat(&mut self, shown: Option<&StepsShown>, now: Instant) -> Option<String> {
        if !self.on_terminal {
            let is_due = now.duration_since(self.told) >= BETWEEN;
            return is_due.then(|| {
                self.told = now;
                let since = HumanDuration(now.duration_since(self.began));
                shown.map_or_else(|| format!("at work for {since}"), |steps| steps.line(now))
            });
        }
        match &self.seconds {
            _ if shown.is_some() || self.prints || self.has_other_bar => {
                self.clear();
                shown.inspect(|steps| steps.bar.tick());
            }
            Some(seconds) => seconds.tick(),
            None if now.duration_since(self.told) >= SILENCE => {
                let took = now.duration_since(self.began);
                self.seconds = Some(new_bar(None, "at work, {elapsed}").with_elapsed(took));
            }
            None => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_log_gets_a_line_every_ten_seconds() {
        let start = Instant::now();
        let mut pulse = Pulse { on_terminal: false, ..Pulse::new(start) };
        let mut lines = vec![];
        for second in 0..35 {
            lines.extend(pulse.beat(None, after(start, second)).map(|line| (second, line)));
            if second == 22 {
                pulse.told(after(start, second)); // a note of the command itself
            }
        }
        let words = |seconds| format!("at work for {seconds} seconds");
        assert_eq!(lines, [(10, words(10)), (20, words(20)), (32, words(32))]);
    }

    #[test]
    fn a_line_says_how_many_steps_are_left() {
        let mut steps = StepsShown::new("runs", 20, Some(144));
        let start = steps.began;
        assert_eq!(steps.line(after(start, 10)), "20 of 144 runs", "nothing is known of the rest");
        steps.reach(51, Some(144));
        steps.set_figures("loss 3.5");
        assert_eq!(steps.line(after(start, 10)), "51 of 144 runs, about 30 seconds left, loss 3.5");
        let mut bytes = StepsShown::new("bytes", 0, None);
        bytes.reach(2048, None);
        assert_eq!(bytes.line(after(bytes.began, 20)), "2.00 KiB in 20 seconds");
    }
}
