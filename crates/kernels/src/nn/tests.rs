use super::embedding::Embedding;
use super::linear::Linear;
use super::norm::{LayerNorm, RmsNorm};
use super::quantized::QMatMul;
use super::weight_format::hold_weights_in;
use crate::cpu::test_numbers::{error, numbers, wide};
use crate::linear::quantized::format::BlockFormat;
use crate::linear::weight::frozen::WeightDType;
use crate::pointwise::activation::Activation;
use crate::pointwise::epilogue::Epilogue;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{D, DType, Device, Module, Result, Tensor};
use candle_nn::{VarBuilder, VarMap};

const DTYPES: [(DType, f64); 3] = [(DType::F32, 1e-6), (DType::F16, 1. / 2048.), (DType::BF16, 1. / 256.)];

#[test]
fn a_linear_layer_is_candles_in_each_dtype_and_rank() -> Result<()> {
    for (dtype, rounding) in DTYPES {
        for shape in [vec![64], vec![3, 64], vec![2, 5, 64], vec![2, 3, 5, 64]] {
            for with_bias in [true, false] {
                let of = |shape: &[usize], salt| numbers(shape, salt)?.to_dtype(dtype);
                let w = of(&[33, 64], 1)?;
                let x = of(&shape, 3)?;
                let bias = with_bias.then(|| of(&[33], 2)).transpose()?;
                let ours = Linear::new(w.clone(), bias.clone())?;
                assert!(ours.weight().is_frozen());
                let got = ours.forward(&x)?;
                let mut expected = wide(&x)?.reshape(((), 64))?.matmul(&wide(&w)?.t()?)?;
                if let Some(bias) = &bias {
                    expected = expected.broadcast_add(&wide(bias)?)?;
                }
                assert_eq!((got.dtype(), &got.dims()[..shape.len() - 1]), (dtype, &shape[..shape.len() - 1]));
                let off = error(&got.reshape(((), 33))?, &expected)?;
                assert!(off <= 1.01 * rounding, "{dtype:?}, {shape:?}: {off:e}");
                // Activations in f32 keep their precision.
                let off = error(&ours.forward(&x.to_dtype(DType::F32)?)?.reshape(((), 33))?, &expected)?;
                assert!(off <= 1e-6, "{dtype:?} under f32: {off:e}");
            }
        }
    }
    Ok(())
}

#[test]
fn halves_meet_other_weights_in_f32() -> Result<()> {
    let w = numbers((32, 64), 1)?;
    let x = numbers((7, 64), 2)?;
    let gate = numbers((7, 32), 3)?;
    let quantized = Linear::new(w.clone(), None)?.quantized(BlockFormat::Q8_0)?;
    let half = Linear::new(w.to_dtype(DType::F16)?, Some(numbers(32, 4)?.to_dtype(DType::F16)?))?;
    for layer in [quantized, half] {
        let x = x.to_dtype(DType::BF16)?;
        let half_gate = gate.to_dtype(DType::BF16)?;
        let gate = half_gate.to_dtype(DType::F32)?;
        for (of_x, of_wide) in [
            (Epilogue::None, Epilogue::None),
            (Epilogue::Gated(Activation::Silu, &half_gate), Epilogue::Gated(Activation::Silu, &gate)),
            (Epilogue::Residual(&half_gate), Epilogue::Residual(&gate)),
        ] {
            let got = layer.forward_with(&x, of_x)?;
            let expected = layer.forward_with(&x.to_dtype(DType::F32)?, of_wide)?.to_dtype(DType::BF16)?;
            assert_eq!(got.dtype(), DType::BF16);
            assert_eq!(wide(&got)?.to_vec2::<f64>()?, wide(&expected)?.to_vec2::<f64>()?);
        }
    }
    Ok(())
}

#[test]
fn a_weight_the_wrong_way_round_is_an_error_where_it_can_be_told() -> Result<()> {
    let weight = numbers((64, 96), 1)?;
    let bias = numbers(64, 2)?;
    let of_bias = Linear::new(weight.t()?, Some(bias)).expect_err("the bias does not fit").to_string();
    assert!(of_bias.contains("96") && of_bias.contains("transposed"), "{of_bias}");
    let layer = Linear::new(weight.t()?, None)?;
    let of_x = layer.forward(&numbers((2, 96), 3)?).expect_err("x does not fit").to_string();
    assert!(of_x.contains("[2, 96]") && of_x.contains("transposed"), "{of_x}");
    let rank = Linear::new(numbers(5, 1)?, None).expect_err("rank 1").to_string();
    assert!(rank.contains("[5]"), "{rank}");
    Ok(())
}

/// Every variable of a small model gets the gradient that plain operations give.
#[test]
fn variables_stay_plain_and_learn() -> Result<()> {
    let map = VarMap::new();
    let vb = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
    let table = super::embedding(11, 8, vb.pp("table"))?;
    let norm = super::layer_norm(8, 1e-5, vb.pp("norm"))?;
    let gate = super::linear(8, 12, vb.pp("gate"))?;
    let up = super::linear_no_bias(8, 12, vb.pp("up"))?;
    let down = super::linear(12, 8, vb.pp("down"))?;
    let rms = super::rms_norm(8, 1e-6, vb.pp("rms"))?;
    assert!(!gate.weight().is_frozen() && table.weight().is_variable());
    let ids = Tensor::new(&[[3u32, 10, 0], [5, 5, 1]], &Device::Cpu)?;
    let x = table.forward(&ids)?;
    let h = norm.forward(&x)?;
    let h = up.forward_with(&h, Epilogue::Gated(Activation::Gelu, &gate.forward(&h)?))?;
    let y = rms.forward(&down.forward_with(&h, Epilogue::Residual(&x))?)?;
    let loss = table.as_linear()?.forward(&y)?.sqr()?.mean_all()?;

    let get = |name: &str| -> Tensor { map.data().lock().expect("no panic")[name].as_tensor().clone() };
    let plain = |x: &Tensor, name: &str| -> Result<Tensor> {
        let y = x.reshape(((), x.dim(D::Minus1)?))?.matmul(&get(&format!("{name}.weight")).t()?)?;
        let bias = format!("{name}.bias");
        if name == "up" { Ok(y) } else { y.broadcast_add(&get(&bias)) }
    };
    let x = get("table.weight").index_select(&ids.flatten_all()?, 0)?;
    let centered = x.broadcast_sub(&x.mean_keepdim(1)?)?;
    let h = centered.broadcast_div(&(centered.sqr()?.mean_keepdim(1)? + 1e-5)?.sqrt()?)?;
    let h = h.broadcast_mul(&get("norm.weight"))?.broadcast_add(&get("norm.bias"))?;
    let h = (plain(&h, "gate")?.gelu_erf()? * plain(&h, "up")?)?;
    let y = (plain(&h, "down")? + x)?;
    let y =
        y.broadcast_div(&(y.sqr()?.mean_keepdim(1)? + 1e-6)?.sqrt()?)?.broadcast_mul(&get("rms.weight"))?;
    let expected = y.matmul(&get("table.weight").t()?)?.sqr()?.mean_all()?;

    assert!(error(&loss, &wide(&expected)?)? < 1e-5);
    let got = loss.backward()?;
    let expected = expected.backward()?;
    for (name, var) in map.data().lock().expect("no panic").iter() {
        let expected = expected.get(var).expect("a gradient");
        let off = error(got.get(var).expect("a gradient"), &wide(expected)?)?;
        assert!(off < 1e-4 && expected.abs()?.max_all()?.to_scalar::<f32>()? > 0., "{name}: {off:e}");
    }
    Ok(())
}

#[test]
fn candles_layers_become_ours_with_the_same_results() -> Result<()> {
    let x = numbers((2, 3, 40), 9)?;
    let near = |ours: Tensor, theirs: Tensor| -> Result<()> {
        assert_eq!(ours.dims(), theirs.dims());
        assert!(error(&ours, &wide(&theirs)?)? < 1e-5);
        Ok(())
    };
    let theirs = candle_nn::Linear::new(numbers((7, 40), 1)?, Some(numbers(7, 2)?));
    near(Linear::try_from(theirs.clone())?.forward(&x)?, theirs.forward(&x)?)?;
    let theirs = candle_nn::Embedding::new(numbers((7, 40), 1)?, 40);
    let ids = Tensor::new(&[[[0u32, 6]]], &Device::Cpu)?;
    near(Embedding::try_from(theirs.clone())?.forward(&ids)?, theirs.forward(&ids)?)?;
    let w = numbers(40, 3)?;
    let b = numbers(40, 4)?;
    for theirs in [
        candle_nn::LayerNorm::new(w.clone(), b, 1e-5),
        candle_nn::LayerNorm::new_no_bias(w.clone(), 1e-5),
        candle_nn::LayerNorm::rms_norm(w.clone(), 1e-5),
    ] {
        near(LayerNorm::from(theirs.clone()).forward(&x)?, theirs.forward(&x)?)?;
    }
    let theirs = candle_nn::RmsNorm::new(w, 1e-6);
    near(RmsNorm::from(theirs.clone()).forward(&x)?, theirs.forward(&x)?)?;
    near(RmsNorm::from(theirs.clone()).forward_diff(&x)?, theirs.forward(&x)?)
}

/// Both round the activations to 8 bits, in blocks of 32 or of 256, so that they agree to about that precision; the product with
/// the widened weight has no such rounding.
#[test]
fn a_ggml_weight_is_multiplied_as_candle_does() -> Result<()> {
    for (format, tolerance) in [
        (GgmlDType::Q4_0, 2e-2),
        (GgmlDType::Q5_0, 2e-2),
        (GgmlDType::Q8_0, 2e-2),
        (GgmlDType::Q4K, 2e-2),
        (GgmlDType::Q5K, 2e-2),
        (GgmlDType::Q6K, 2e-2),
        (GgmlDType::F16, 1e-5),
        (GgmlDType::F32, 1e-5),
    ] {
        let tensor = QTensor::quantize(&numbers((24, 512), 1)?, format)?;
        let widened = wide(&tensor.dequantize(&Device::Cpu)?)?;
        let theirs = candle_core::quantized::QMatMul::from_qtensor(tensor)?;
        let ours = QMatMul::try_from(theirs.clone())?;
        for rows in [1, 5, 40] {
            let x = numbers((rows, 512), 2)?;
            let got = ours.forward(&x)?;
            let off = error(&got, &wide(&x)?.matmul(&widened.t()?)?)?;
            assert!(off < tolerance, "{format:?}, {rows} rows, widened: {off:e}");
            let off = error(&got, &wide(&theirs.forward(&x)?)?)?;
            assert!(off < 2e-2, "{format:?}, {rows} rows, candle: {off:e}");
        }
    }
    let other = QTensor::quantize(&numbers((4, 256), 1)?, GgmlDType::Q2K)?;
    let refused = Linear::from_qtensor(&other, None).expect_err("no product").to_string();
    assert!(refused.contains("Q2K") && refused.contains("q8_0") && refused.contains("QMatMul"), "{refused}");
    Ok(())
}

#[test]
fn a_model_is_held_as_it_is_wanted_while_it_loads() -> Result<()> {
    let table = numbers((50, 64), 1)?;
    let x = numbers((3, 64), 2)?;
    let tensors = [("table.weight", table.clone()), ("out.weight", numbers((7, 64), 3)?)];
    let tensors = tensors.map(|(name, tensor)| (name.to_owned(), tensor)).into();
    let vb = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
    let load = || -> Result<_> {
        Ok((super::embedding(50, 64, vb.pp("table"))?, super::linear_no_bias(64, 7, vb.pp("out"))?))
    };
    let plain = load()?;
    for (format, tolerance) in
        [(WeightDType::Blocks(BlockFormat::Q8_0), 2e-2), (WeightDType::Plain(DType::BF16), 5e-3)]
    {
        let (table, out) = hold_weights_in(format, load)?;
        assert_eq!((table.weight().dtype(), out.weight().dtype()), (format, format));
        assert!(error(&out.forward(&x)?, &wide(&plain.1.forward(&x)?)?)? < tolerance, "{format}");
        let ids = Tensor::new(&[49u32, 0], &Device::Cpu)?;
        let vectors = table.forward(&ids)?;
        assert_eq!(vectors.dtype(), DType::F32);
        assert!(error(&vectors, &wide(&plain.0.forward(&ids)?)?)? < tolerance, "{format}");
    }
    assert_eq!(load()?.0.weight().dtype(), WeightDType::Plain(DType::F32));
    let refused = hold_weights_in(WeightDType::Blocks(BlockFormat::Q4K), load).expect_err("64 < 256");
    assert!(refused.to_string().contains("256"), "{refused}");
    let refused = hold_weights_in(WeightDType::Plain(DType::U8), load).expect_err("no floats");
    assert!(refused.to_string().contains("u8"), "{refused}");
    assert_eq!(load()?.1.weight().dtype(), WeightDType::Plain(DType::F32));
    Ok(())
}

/// Formats without a product of ours are multiplied by Candle's.
#[test]
fn every_format_of_a_gguf_file_has_a_product() -> Result<()> {
    let w = numbers((40, 256), 1)?;
    let x = numbers((3, 256), 2)?;
    let residual = numbers((3, 40), 3)?;
    for format in [GgmlDType::Q4_1, GgmlDType::Q5_1, GgmlDType::Q3K, GgmlDType::Q8_0, GgmlDType::F16] {
        let tensor = std::sync::Arc::new(QTensor::quantize(&w, format)?);
        let widened = tensor.dequantize(&Device::Cpu)?;
        let product = QMatMul::from_arc(tensor)?;
        let expected = wide(&(x.matmul(&widened.t()?)? + &residual)?)?;
        for dtype in [DType::F32, DType::BF16] {
            let of = |t: &Tensor| t.to_dtype(dtype);
            let got = product.forward_with(&of(&x)?, Epilogue::Residual(&of(&residual)?))?;
            assert_eq!(got.dtype(), dtype);
            let off = error(&got, &expected)?;
            assert!(off < 0.02, "{format:?} under {dtype:?}: {off}");
        }
        // Strided rows, and their gradient, which is that of the widened weight.
        let strided = candle_core::Var::from_tensor(&x.t()?.contiguous()?)?;
        let y = product.forward(&strided.t()?)?;
        let gradients = (y * &residual)?.sum_all()?.backward()?;
        let got = gradients.get(&strided).expect("x learns").t()?;
        let off = error(&got, &wide(&residual.matmul(&widened)?)?)?;
        assert!(off < 1e-5, "{format:?}, gradient: {off}");
        let is_ours = !matches!(format, GgmlDType::Q4_1 | GgmlDType::Q5_1 | GgmlDType::Q3K);
        let (_, explanation) = crate::cpu::explain::explain(|| product.forward(&x))?;
        assert_eq!(explanation.0[0].slower_because.is_none(), is_ours, "{explanation}");
    }
    assert!(QMatMul::from_qtensor(QTensor::quantize(&numbers(256, 1)?, GgmlDType::Q8_0)?).is_err());
    let message = BlockFormat::try_from(GgmlDType::Q3K).expect_err("none").to_string();
    assert!(message.contains("Q3K") && message.contains("q4_K"), "{message}");
    Ok(())
}

#[test]
fn a_table_of_a_gguf_file_gives_vectors_in_f32() -> Result<()> {
    let table = numbers((9, 256), 1)?;
    let ids = Tensor::new(&[[3u32, 8, 0]], &Device::Cpu)?;
    for format in [GgmlDType::Q8_0, GgmlDType::Q4K, GgmlDType::Q4_1, GgmlDType::F16, GgmlDType::F32] {
        let tensor = QTensor::quantize(&table, format)?;
        let embedding = Embedding::from_qtensor(&tensor)?;
        let got = embedding.forward(&ids)?;
        assert_eq!((got.dtype(), got.dims()), (DType::F32, &[1, 3, 256][..]));
        let expected = tensor.dequantize(&Device::Cpu)?.index_select(&ids.flatten_all()?, 0)?;
        assert!(error(&got.squeeze(0)?, &wide(&expected)?)? < 1e-6, "{format:?}");
        assert_eq!(embedding.as_linear()?.forward(&got)?.dims(), [1, 3, 9]);
    }
    let message = Embedding::new(table, 256)?.forward(&Tensor::new(&[9u32], &Device::Cpu)?);
    assert!(message.expect_err("there are 9").to_string().contains("a table of 9 vectors"));
    Ok(())
}

#[test]
fn a_weight_that_cannot_be_held_is_named() {
    let vb = VarBuilder::zeros(DType::F32, &Device::Cpu).pp("layers").pp(3).pp("up");
    let q4_k = WeightDType::Blocks(BlockFormat::Q4K);
    let message = hold_weights_in(q4_k, || super::linear(192, 8, vb)).expect_err("192 inputs").to_string();
    assert!(message.contains("layers.3.up.weight") && message.contains("192"), "{message}");
}
