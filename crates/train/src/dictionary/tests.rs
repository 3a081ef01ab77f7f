//! Tests of [`DictionaryTrainer`]: its gradients, and what silent features do.

use super::*;

/// The loss of a batch from whole matrices, which Candle differentiates: Gao et al.'s with α = 1/32, and Rajamanoharan et al.'s
/// penalty and slopes with ε = 0.05.
fn gradients_of_whole_matrices(trainer: &DictionaryTrainer, rows: &Tensor) -> Result<Vec<Tensor>> {
    let k = trainer.options.k;
    let (x, target) = trainer.options.parts(rows)?;
    let x = (x * trainer.scale)?;
    let target = (target * trainer.out_scale)?;
    let x = if trainer.options.reads.is_some() { x } else { x.broadcast_sub(&trainer.b_dec)? };
    let pre = x.matmul(&trainer.w_enc)?.broadcast_add(&trainer.b_enc)?;
    let numbers = pre.to_vec2::<f32>()?;
    let (positions, features) = pre.dims2()?;
    let strongest = |row: &[f32], k: usize, among: &[usize]| {
        let mut order = among.to_vec();
        order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
        order.truncate(k);
        order
    };
    let mask = |chosen: &dyn Fn(&[f32]) -> Vec<usize>| {
        let mut mask = vec![0f32; positions * features];
        for (row, mask) in numbers.iter().zip(mask.chunks_mut(features)) {
            for one in chosen(row) {
                mask[one] = 1.0;
            }
        }
        Tensor::from_vec(mask, (positions, features), &Device::Cpu)
    };
    let all: Vec<usize> = (0..features).collect();
    let mut penalty = None;
    let (fires, acts) = match &trainer.log_threshold {
        None => {
            let fires =
                mask(&|row| strongest(row, k, &all).into_iter().filter(|&one| row[one] > 0.0).collect())?;
            (fires.clone(), (pre.relu()? * fires)?)
        }
        Some(log) => {
            let threshold = threshold(log)?;
            let fires = pre.broadcast_gt(&threshold)?.to_dtype(DType::F32)?;
            let apart = pre.broadcast_sub(&threshold)?.abs()?.detach();
            let near = apart.lt(0.025)?.to_dtype(DType::F32)?;
            // 0 with the threshold's gradient.
            let learns = (&threshold - threshold.detach())?;
            let of_acts = near.broadcast_mul(&(threshold.detach() / 0.05)?)?.broadcast_mul(&learns)?;
            let l0 = (&fires - (near / 0.05)?.broadcast_mul(&learns)?)?.sum(1)?.mean_all()?;
            penalty = Some(((l0 / k as f64)? - 1.0)?.sqr()?);
            (fires.clone(), ((pre.relu()? * fires)? - of_acts)?)
        }
    };
    let missed = (target - acts.matmul(&trainer.w_dec)?.broadcast_add(&trainer.b_dec)?)?;
    let mut loss = (missed.sqr()?.mean_all()? / trainer.variance)?;
    if let Some(penalty) = penalty {
        loss = (loss + penalty)?;
    }
    let fired: Vec<f32> = fires.max(0)?.to_vec1()?;
    let silent: Vec<usize> = (0..features)
        .filter(|&one| fired[one] == 0.0 && trainer.silent[one] + positions >= trainer.options.silent_after)
        .collect();
    if !silent.is_empty() {
        let missed = missed.detach();
        let d_out = missed.dim(1)?;
        let chosen = mask(&|row| strongest(row, silent.len().min(d_out / 2), &silent))?;
        let left = (&missed - (pre * chosen)?.matmul(&trainer.w_dec)?)?;
        let of_all = missed.sqr()?.mean_all()?.broadcast_mul(&Tensor::new(32f32, &Device::Cpu)?)?;
        loss = (loss + (left.sqr()?.mean_all()? / of_all)?)?;
    }
    let gradients = loss.backward()?;
    let of = |(name, var): &(String, Var)| {
        gradients.get(var).cloned().ok_or_else(|| TrainError::other(format!("{name}: no gradient")))
    };
    trainer.optimizer.variables.iter().map(of).collect()
}

#[test]
fn gradients_of_what_fires_are_those_of_whole_matrices() -> Result<()> {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let mut drawn = |rows: usize, columns: usize| {
        let drawn: Vec<f32> = (0..rows * columns).map(|_| StandardNormal.sample(&mut rng)).collect();
        Tensor::from_vec(drawn, (rows, columns), &Device::Cpu)
    };
    for (sparsity, reads) in [
        (Sparsity::TopK, None),
        (Sparsity::TopK, Some(9)),
        (Sparsity::JumpRelu, None),
        (Sparsity::JumpRelu, Some(9)),
    ] {
        for silent in [0, 6] {
            let rows = drawn(300, 21)?; // more than one chunk of sums
            let options =
                DictionaryOptions { sparsity, reads, silent_after: 1000, ..DictionaryOptions::new(40, 3, 1) };
            let mut trainer = DictionaryTrainer::new(&rows, options)?;
            trainer.w_enc.set(&drawn(trainer.w_enc.dim(0)?, 40)?)?;
            let mut b_enc: Vec<f32> = drawn(1, 40)?.flatten_all()?.to_vec1()?;
            // The first cannot fire.
            b_enc[..silent].fill(-50.0);
            trainer.b_enc.set(&Tensor::new(b_enc, &Device::Cpu)?)?;
            trainer.silent[..silent].fill(900);
            let (_, found) = trainer.gradients(&rows)?;
            let expected = gradients_of_whole_matrices(&trainer, &rows)?;
            let names = trainer.optimizer.variables.iter().map(|(name, _)| name);
            for (name, (found, expected)) in names.zip(found.iter().zip(&expected)) {
                let most = expected.abs()?.max_all()?.to_scalar::<f32>()?;
                let apart = (found - expected)?.abs()?.max_all()?.to_scalar::<f32>()?;
                assert!(
                    most > 0.0 && apart <= 2e-5 * most,
                    "{sparsity:?} {reads:?} {name}: {apart} of {most}"
                );
            }
            assert_eq!(found.len(), expected.len());
            // What is silent has a gradient of its own.
            if silent > 0 {
                let of_silent = found[0].narrow(0, 0, silent)?.abs()?.max_all()?.to_scalar::<f32>()?;
                assert!(of_silent > 0.0);
            }
        }
    }
    Ok(())
}

#[test]
fn a_batch_with_nan_or_infinity_is_refused() -> Result<()> {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let drawn: Vec<f32> = (0..30 * 8).map(|_| StandardNormal.sample(&mut rng)).collect();
    let sample = Tensor::from_slice(&drawn, (30, 8), &Device::Cpu)?;
    for sparsity in [Sparsity::TopK, Sparsity::JumpRelu] {
        // The first number is read, the last one predicted.
        for (reads, place) in [(None, 0), (Some(5), 0), (Some(5), 7)] {
            for number in [f32::NAN, f32::INFINITY] {
                let options = DictionaryOptions { reads, sparsity, ..DictionaryOptions::new(12, 2, 3) };
                let mut trainer = DictionaryTrainer::new(&sample, options)?;
                let mut values = drawn.clone();
                values[16 + place] = number;
                let batch = Tensor::from_vec(values, (30, 8), &Device::Cpu)?;
                let error = trainer.step(&[batch]).expect_err("it is not finite").to_string();
                assert!(error.contains("none NaN or infinite"), "{error}");
            }
        }
    }
    Ok(())
}

/// Of 32 features, 28 cannot fire at first, and the values have more directions than the other four.
#[test]
fn silent_features_come_back() -> Result<()> {
    let firing = |silent_after: usize| -> Result<usize> {
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        let mut batch = || {
            let drawn: Vec<f32> = (0..64 * 16).map(|_| StandardNormal.sample(&mut rng)).collect();
            Tensor::from_vec(drawn, (64, 16), &Device::Cpu)
        };
        let options = DictionaryOptions { silent_after, lr: 0.02, ..DictionaryOptions::new(32, 2, 400) };
        let mut trainer = DictionaryTrainer::new(&batch()?, options)?;
        let bias: Vec<f32> = (0..32).map(|feature| if feature < 4 { 0.0 } else { -5.0 }).collect();
        trainer.b_enc.set(&Tensor::new(bias, &Device::Cpu)?)?;
        for _ in 0..options.steps {
            trainer.step(&[batch()?])?;
        }
        Ok(trainer.silent.iter().filter(|&&silent| silent < 640).count())
    };
    let revived = firing(640)?;
    let left = firing(usize::MAX)?;
    assert!(left <= 4 && revived >= 12, "{revived} of 32 fire, {left} without their own loss");
    Ok(())
}
