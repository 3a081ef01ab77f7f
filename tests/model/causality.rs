//! Changing a token changes nothing before it, and something at it and after it.

use crate::common::{Result, some_ids};
use crate::models::random_model;
use candle_core::{DType, Device, Tensor};
use gpt2_model::{CausalSelfAttention, Config, ForwardArgs, init};

#[test]
fn a_token_reaches_no_position_before_it() -> Result {
    let model = random_model(3, 5, 24)?;
    let t = 24;
    let ids = some_ids(t, 0)?;
    let run = |ids: &Tensor| -> Result<Vec<Vec<f32>>> {
        Ok(model.forward(ids, ForwardArgs::default())?.logits.squeeze(0)?.to_vec2()?)
    };
    let before = run(&ids)?;
    for j in [0, 1, 11, t - 1] {
        let mut changed = ids.squeeze(0)?.to_vec1::<u32>()?;
        changed[j] = (changed[j] + 1) % 37;
        let after = run(&Tensor::new(changed, &Device::Cpu)?.unsqueeze(0)?)?;
        assert_eq!(before[..j], after[..j], "token {j} changed what lies before it");
        for i in j..t {
            assert_ne!(before[i], after[i], "token {j} does not reach position {i}");
        }
    }
    Ok(())
}

/// A block that is loaded by itself is checked against the config, as a whole model is.
#[test]
fn a_block_whose_heads_do_not_divide_its_width_is_refused() {
    let config = Config { n_embd: 6, n_head: 4, n_positions: 8, ..Config::gpt2() };
    let vb = init::seeded(1, DType::F32, &Device::Cpu);
    let error = CausalSelfAttention::load(vb, &config, 0).expect_err("6 / 4");
    assert!(error.to_string().contains("n_head"), "{error}");
}
