//! The model of the live page, and the page in a browser.

mod address;
#[path = "../common/browser.rs"]
mod browser;
#[path = "../common/mod.rs"]
mod common;
mod learning;
mod model;
mod own_model;
mod page;
mod values;
mod way;
