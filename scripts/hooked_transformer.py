"""A GPT-2 of transformers in TransformerLens 2."""

NO_PROCESSING = dict(fold_ln=False, center_writing_weights=False, center_unembed=False, fold_value_biases=False)


def hooked(hf, processing: dict = NO_PROCESSING, **options: object):
    """`processing` goes to load_and_process_state_dict, the options to the config."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig
    from transformer_lens.pretrained.weight_conversions import convert_gpt2_weights

    c = hf.config
    config = HookedTransformerConfig(
        n_layers=c.n_layer, d_model=c.n_embd, d_head=c.n_embd // c.n_head, n_heads=c.n_head, d_mlp=4 * c.n_embd,
        n_ctx=c.n_positions, d_vocab=c.vocab_size, act_fn=c.activation_function, eps=c.layer_norm_epsilon,
        normalization_type="LNPre" if processing["fold_ln"] else "LN", device="cpu", **options,
    )  # fmt: skip
    model = HookedTransformer(config)
    state = convert_gpt2_weights(hf, config)
    del hf  # its memory counts
    model.load_and_process_state_dict(state, **processing)
    return model
