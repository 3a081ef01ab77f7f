//! What each stream has for itself.

use super::threads::own_stream_of_thread;
use candle_core::Result;
use candle_core::cuda_backend::CudaDevice;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;

/// A stream: its context and handle, and the thread if it is another one in each, under the same handle.
type Stream = (usize, usize, Option<ThreadId>);

/// One `T` for each stream, made when it is needed and kept.
#[derive(Debug)]
pub(crate) struct PerStream<T>(Mutex<HashMap<Stream, Arc<T>>>);

impl<T> Default for PerStream<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> PerStream<T> {
    /// That of the device's stream, if it is `enough`; otherwise a new one takes its place.
    pub(crate) fn get(
        &self,
        device: &CudaDevice,
        enough: impl Fn(&T) -> bool,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        let stream = device.cuda_stream();
        let key =
            (stream.context().cu_ctx() as usize, stream.cu_stream() as usize, own_stream_of_thread(&stream));
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = all.get(&key).filter(|found| enough(found)) {
            return Ok(found.clone());
        }
        let made = Arc::new(make()?);
        all.insert(key, made.clone());
        Ok(made)
    }
}
