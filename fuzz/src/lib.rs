//! What the fuzzer runs: see `scripts/fuzz.sh`. The targets' bodies are in `targets`, which the ordinary tests
//! run over the files of `corpus/` and `found/`, too.

mod targets;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs the target of that name. A panic that leaves it ends the process, with where it came from; one that
/// the loader catches and makes an error of does not.
///
/// # Panics
/// When there is no such target.
pub fn run(name: &str, data: &[u8]) {
    static HOOK: Once = Once::new();
    // libFuzzer's own hook ends the process at any panic, also at one that is caught.
    HOOK.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            let trace = std::backtrace::Backtrace::force_capture();
            LAST_PANIC.with_borrow_mut(|last| *last = format!("{info}\n{trace}"));
        }));
    });
    let (_, target) =
        targets::TARGETS.iter().find(|(known, _)| *known == name).expect("a target of that name");
    if catch_unwind(AssertUnwindSafe(|| target(data))).is_err() {
        LAST_PANIC.with_borrow(|last| eprintln!("{last}"));
        std::process::abort();
    }
}
