//! Calls into the crates tokenizers and tiktoken, and turns a panic there into an error.

use crate::error::LoadError;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    /// Whether this thread is inside [`guarded`], where a panic is caught and reported as an error.
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `call`. Its errors and panics become an error that names `name`.
///
/// The loader checks everything before it reaches those crates; this catches whatever the checks miss. A panic caught
/// here prints nothing; any other panic prints as usual.
pub(super) fn guarded<T>(name: &str, call: impl FnOnce() -> Result<T, String>) -> Result<T, LoadError> {
    silence_caught_panics();
    let outside = GUARDED.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(call));
    GUARDED.set(outside);
    let failed = |reason| LoadError::Tokenizer { name: name.to_string(), reason };
    match result {
        Ok(result) => result.map_err(failed),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
            Err(failed(format!("the tokenizer broke off: {text}")))
        }
    }
}

/// Installs, once, a panic hook that stays silent inside [`guarded`].
fn silence_caught_panics() {
    static ONCE: Once = Once::new();
    // A panicking thread cannot change the hook.
    if std::thread::panicking() {
        return;
    }
    ONCE.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !GUARDED.try_with(Cell::get).unwrap_or(false) {
                print(info);
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_with_the_files_name_and_the_panics_text() {
        let refused =
            |call: fn() -> Result<(), String>| guarded("some.json", call).expect_err("refused").to_string();
        for message in
            [refused(|| panic!("at {}", 7)), refused(|| panic!("at 7")), refused(|| Err("at 7".into()))]
        {
            assert!(message.starts_with("some.json: ") && message.contains("at 7"), "{message}");
        }
        assert!(!GUARDED.get(), "the thread's own panics are printed again");
        assert!(guarded("some.json", || Ok(1)).is_ok_and(|one| one == 1));
    }

    /// Runs the test above in a separate process and looks at its output.
    #[test]
    fn a_caught_panic_prints_nothing() {
        let name =
            "tokenizer::catch_panics::tests::a_panic_is_an_error_with_the_files_name_and_the_panics_text";
        let this = std::env::current_exe().expect("this test");
        let mut child = std::process::Command::new(this);
        let output = child.args(["--exact", name, "--nocapture"]).output().expect("it runs");
        let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(printed.contains("1 passed") && !printed.contains("panicked"), "{printed}");
    }
}
