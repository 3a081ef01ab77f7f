//! Pages in a real browser.

#[path = "../common/browser.rs"]
mod browser;
mod choices;
#[path = "../common/mod.rs"]
mod common;
mod comparison;
mod hostile;
mod numbers;
mod pages;
mod taking_along;
