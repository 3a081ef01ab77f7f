//! `gpt2 attention --html`, with a browser and without.

mod command;
mod demo;
