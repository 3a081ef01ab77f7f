//! Several documents in a row: each as if it were alone.

use crate::common::{Result, assert_close, some_ids};
use crate::models::random_model;
use candle_core::{DType, Device, Tensor};
use gpt2_model::lora::{Adapter, LoraOptions};
use gpt2_model::training::{Documents, TrainingBatch};
use gpt2_model::{Config, ForwardArgs, Gpt2LMHeadModel, Implementation, KvCache, init};

const LENGTHS: [usize; 4] = [5, 1, 9, 4];

/// Two rows of the same documents, the second in the reverse order, and where the document of each position begins.
fn packed() -> Result<(Tensor, Tensor, Vec<Vec<Tensor>>)> {
    let documents: Vec<Tensor> =
        LENGTHS.iter().enumerate().map(|(i, len)| some_ids(*len, i)).collect::<Result<_>>()?;
    let rows = [documents.clone(), documents.into_iter().rev().collect()];
    let mut starts: Vec<u32> = vec![];
    for row in &rows {
        let mut start = 0;
        for document in row {
            let len = document.dim(1)?;
            starts.extend(vec![u32::try_from(start)?; len]);
            start += len;
        }
    }
    let cat = |row: &Vec<Tensor>| Tensor::cat(row, 1);
    let ids = Tensor::cat(&[cat(&rows[0])?, cat(&rows[1])?], 0)?; // (2, 19)
    let starts = Tensor::from_vec(starts, ids.dims(), &Device::Cpu)?;
    Ok((ids, starts, rows.to_vec()))
}

#[test]
fn documents_in_a_row_give_what_each_gives_alone() -> Result {
    let model = random_model(3, 8, 24)?;
    let (ids, starts, rows) = packed()?;
    for (implementation, dtype, tolerance) in [
        (Implementation::Eager, DType::F32, 1e-5),
        (Implementation::Fused, DType::F32, 1e-5),
        (Implementation::Fused, DType::BF16, 10. * 2f64.powi(-8)),
    ] {
        let config = Config { attn_implementation: implementation, ..model.config().clone() };
        let model = Gpt2LMHeadModel::load(init::seeded(7, dtype, &Device::Cpu), &config)?;
        let run = |ids: &Tensor, document_starts: Option<&Tensor>| -> Result<_> {
            let args = ForwardArgs {
                document_starts,
                output_attentions: true,
                output_summaries: true,
                ..Default::default()
            };
            Ok(model.forward(ids, args)?)
        };
        let whole = run(&ids, Some(&starts))?;
        for (b, row) in rows.iter().enumerate() {
            let mut start = 0;
            for document in row {
                let len = document.dim(1)?;
                let alone = run(document, None)?;
                let part = |x: &Tensor| x.narrow(0, b, 1)?.narrow(1, start, len);
                let what = format!("{implementation:?} {dtype:?}, row {b}, from {start}");
                assert_close(&what, &part(&whole.logits)?, &alone.logits, tolerance);
                let weights = whole.transformer.attentions[1].narrow(0, b, 1)?.narrow(2, start, len)?;
                let of_others = weights.narrow(3, 0, start)?;
                if start > 0 {
                    assert_eq!(of_others.abs()?.max_all()?.to_scalar::<f32>()?.to_bits(), 0, "{what}");
                }
                assert_close(
                    &what,
                    &weights.narrow(3, start, len)?,
                    &alone.transformer.attentions[1],
                    tolerance,
                );
                start += len;
            }
        }
    }
    let mut cache = KvCache::new(model.config(), 2, 19, DType::F32, &Device::Cpu)?;
    let args = ForwardArgs { document_starts: Some(&starts), cache: Some(&mut cache), ..Default::default() };
    assert!(model.forward(&ids, args).is_err(), "a cache");
    let late = (&starts + 1.0)?;
    let args = ForwardArgs { document_starts: Some(&late), ..Default::default() };
    assert!(model.forward(&ids, args).expect_err("late").to_string().contains("start of its document"));
    Ok(())
}

/// The loss over what is learned, and the gradients of an adapter, are those of the documents one by one.
#[test]
fn the_loss_of_packed_documents_is_that_of_each_alone() -> Result {
    let model = random_model(3, 8, 24)?;
    let (ids, starts, rows) = packed()?;
    let options = LoraOptions { target_modules: vec!["c_attn".into(), "c_fc".into()], ..LoraOptions::new(3) };
    let adapter = Adapter::new(model.config(), &options, 1, &Device::Cpu)?;
    let model = model.with_adapter("default", &adapter, 1.0)?;
    // Of each document, the second half is learned: the token after each position but the last.
    let (mut learned, mut sum, mut count) = (vec![], None::<Tensor>, 0);
    for (b, row) in rows.iter().enumerate() {
        let mut start = 0;
        for document in row {
            let len = document.dim(1)?;
            for i in len / 2..len.saturating_sub(1) {
                learned.push(u32::try_from(b * 19 + start + i)?);
                let args = ForwardArgs::default();
                let logits = model.forward(document, args)?.logits.narrow(1, i, 1)?;
                let target = document.narrow(1, i + 1, 1)?;
                let loss = gpt2_model::training::cross_entropy(&logits, &target)?;
                sum = Some(sum.map_or_else(|| Ok(loss.clone()), |sum| sum + &loss)?);
                count += 1;
            }
            start += len;
        }
    }
    let expected = (sum.ok_or("losses")? / f64::from(count))?;
    let targets = Tensor::cat(&[ids.narrow(1, 1, 18)?, ids.narrow(1, 0, 1)?], 1)?;
    let learned = Tensor::new(learned, &Device::Cpu)?;
    let batch = TrainingBatch { input_ids: ids, targets, documents: Some(Documents { starts, learned }) };
    let loss = model.loss(&batch, ForwardArgs::default())?;
    assert_close("loss", &loss, &expected, 1e-5);
    let (of_batch, alone) = (loss.backward()?, expected.backward()?);
    let (again, recomputed) = model.recomputed_gradients_of(&batch, None)?;
    assert_eq!(again.to_bits(), loss.to_scalar::<f32>()?.to_bits());
    for update in adapter.updates.values() {
        let b = update.b();
        let expected = alone.get(b).ok_or("alone")?;
        assert_close("gradient", of_batch.get(b).ok_or("packed")?, expected, 1e-4);
        assert_close("recomputed", recomputed.get(b).ok_or("recomputed")?, expected, 1e-4);
    }
    Ok(())
}
