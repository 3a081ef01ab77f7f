//! candle_nn's own tests of its layers, on ours: their source with the exchanges of `exchanges/tests`.
#![allow(warnings, clippy::all, clippy::pedantic)]

extern crate candle_core as candle;

macro_rules! tests {
    ($($name:ident),+) => {
        $(mod $name {
            include!(concat!(env!("OUT_DIR"), "/tests/", stringify!($name), ".rs"));
        })+
    };
}
tests!(cpu_flash_attn, layer_norm, ops);
