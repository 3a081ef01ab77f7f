//! `gpt2 attention --html` in a real browser.

mod browser;
mod command;
mod demo;
mod hostile;
mod numbers;
mod pages;
