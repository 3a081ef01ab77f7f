//! A way to end a pass that takes long: each block asks first whether it should still run.

use candle_core::Result;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The shortest time between two questions: short enough for a person who waits.
const EVERY: Duration = Duration::from_millis(50);

type Check = Rc<dyn Fn() -> Result<()>>;

thread_local! {
    /// The question of the work on this thread.
    static CHECK: RefCell<Option<Check>> = const { RefCell::new(None) };
    /// When it was asked last.
    static ASKED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Does `work`, whose passes on this thread end with the error of `check` once it returns one. Blocks call it at most once in 50 ms.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use gpt2_model::{Config, ForwardArgs, Gpt2LMHeadModel, init, interruptible};
///
/// # fn main() -> candle_core::Result<()> {
/// let config = Config { n_layer: 1, n_head: 1, n_embd: 4, n_positions: 4, vocab_size: 5, ..Config::gpt2() };
/// let model = Gpt2LMHeadModel::load(init::seeded(0, DType::F32, &Device::Cpu), &config)?;
/// let ids = Tensor::new(&[[1u32, 2]], &Device::Cpu)?;
/// let stopped = interruptible(|| candle_core::bail!("stopped"), || model.forward(&ids, ForwardArgs::default()));
/// assert!(stopped.is_err_and(|error| error.to_string().contains("stopped")));
/// assert!(model.forward(&ids, ForwardArgs::default()).is_ok());
/// # Ok(())
/// # }
/// ```
pub fn interruptible<T>(check: impl Fn() -> Result<()> + 'static, work: impl FnOnce() -> T) -> T {
    let _outer = Restored { check: CHECK.replace(Some(Rc::new(check))) };
    ASKED.set(None);
    work()
}

/// Puts back the question of the work around this one, also if this one panics.
struct Restored {
    check: Option<Check>,
}

impl Drop for Restored {
    fn drop(&mut self) {
        CHECK.set(self.check.take());
    }
}

/// The error that ends this thread's work, if it should end.
pub(crate) fn check_interrupt() -> Result<()> {
    if ASKED.get().is_some_and(|asked| asked.elapsed() < EVERY) {
        return Ok(());
    }
    // The question may itself run a pass, so it is not borrowed meanwhile.
    let Some(check) = CHECK.with_borrow(Option::clone) else { return Ok(()) };
    ASKED.set(Some(Instant::now()));
    check()
}
