//! Interventions, places and hook points as text, one a line: `ablate L.H`, `mean-ablate L.H`, `scale L.H=F`, `temperature L.H=T`,
//! `block [L[.H]/]Q:K`; `L.mlp`; `blocks.L.attn.hook_z`.

use gpt2_model::Config;
use gpt2_model::hooks::{Intervention, Interventions, Place, Point};

pub(crate) fn texts(data: &[u8]) {
    let config =
        Config { n_layer: 2, n_head: 2, n_embd: 8, n_positions: 16, vocab_size: 11, ..Config::gpt2() };
    let text = String::from_utf8_lossy(data);
    let mut list = vec![];
    for line in text.lines() {
        if let Ok(place) = line.parse::<Place>() {
            assert_eq!(place.to_string().parse(), Ok(place));
        }
        if let Ok(point) = line.parse::<Point>() {
            assert_eq!(point.to_string().parse(), Ok(point));
        }
        match line.parse::<Intervention>() {
            Err(error) => assert!(!error.to_string().is_empty()),
            Ok(one) => {
                let shown = one.to_string();
                let again: Intervention =
                    shown.parse().expect("what it displays as is one of its text forms");
                assert_eq!(again.to_string(), shown);
                // Alone, and below with the others.
                if let Err(error) = Interventions::new([one.clone()], &config) {
                    assert!(!error.to_string().is_empty());
                } else {
                    list.push(one);
                }
            }
        }
    }
    Interventions::new(list, &config).expect("interventions that fit one by one fit together");
}
