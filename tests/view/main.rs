//! Pages in a real browser.

#[path = "../common/browser.rs"]
mod browser;
#[path = "../common/mod.rs"]
mod common;
mod hostile;
mod numbers;
mod pages;
