//! The fuzzer: `FUZZ_TARGET` names the target that it runs, see `scripts/fuzz.sh`. The targets' bodies are in `targets`;
//! the ordinary tests run them over the files of `corpus/` and `found/`.

#![no_main]

mod targets;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;
use targets::{TARGETS, Target};

libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data));

thread_local! {
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// The target that the environment names.
static CHOSEN: LazyLock<Target> = LazyLock::new(|| {
    // libFuzzer's own hook ends the process at any panic, also at one that is caught.
    std::panic::set_hook(Box::new(|info| {
        let trace = std::backtrace::Backtrace::force_capture();
        LAST_PANIC.with_borrow_mut(|last| *last = format!("{info}\n{trace}"));
    }));
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let found = TARGETS.iter().find(|(known, _)| *known == name);
    found.map(|(_, target)| *target).unwrap_or_else(|| {
        eprintln!("FUZZ_TARGET is {name:?}; expected one of {:?}", TARGETS.map(|(known, _)| known));
        std::process::exit(2)
    })
});

/// Runs the target. A panic that leaves it ends the process, with where it came from; one that the loader catches and makes
/// an error of does not.
fn run(data: &[u8]) {
    let target = *CHOSEN;
    if catch_unwind(AssertUnwindSafe(|| target(data))).is_err() {
        LAST_PANIC.with_borrow(|last| eprintln!("{last}"));
        std::process::abort();
    }
}
