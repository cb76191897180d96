"""Names of the variables of real models, as their own frameworks write them, with the dimensions of each."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

BERT = (
    "bert.embeddings.word_embeddings.weight:2 bert.embeddings.position_embeddings.weight:2"
    " bert.embeddings.token_type_embeddings.weight:2 bert.embeddings.LayerNorm.weight:1"
    " bert.encoder.layer.0.attention.self.query.weight:2 bert.encoder.layer.0.attention.self.query.bias:1"
    " bert.encoder.layer.0.attention.output.dense.weight:2 bert.encoder.layer.11.output.LayerNorm.weight:1"
    " bert.pooler.dense.weight:2 cls.predictions.bias:1 cls.predictions.transform.dense.weight:2"
    " cls.predictions.decoder.weight:2 cls.seq_relationship.weight:2"
)
GPT2 = (
    "transformer.wte.weight:2 transformer.wpe.weight:2 transformer.h.0.ln_1.weight:1 transformer.h.0.attn.bias:4"
    " transformer.h.0.attn.masked_bias:0 transformer.h.0.attn.c_attn.weight:2 transformer.h.0.attn.c_proj.bias:1"
    " transformer.h.11.mlp.c_fc.weight:2 transformer.ln_f.bias:1 lm_head.weight:2"
)
DLRM = (
    "emb_l.0.weight:2 emb_l.25.weight:2 bot_l.0.weight:2 bot_l.0.bias:1 top_l.4.weight:2 top_l.4.bias:1"
    " embeddings.weight:2 embeddings.cat_0.weight:2 embeddings.cat_0.bias:1 v_W_l.0:1"
)
VIT = (
    "vit.embeddings.cls_token:3 vit.embeddings.position_embeddings:3 vit.embeddings.mask_token:3"
    " vit.embeddings.patch_embeddings.projection.weight:4 vit.embeddings.patch_embeddings.projection.bias:1"
    " vit.encoder.layer.0.layernorm_before.weight:1 classifier.weight:2 classifier.bias:1"
)
T5 = (
    "shared.weight:2 encoder.embed_tokens.weight:2"
    " encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight:2 decoder.final_layer_norm.weight:1"
)
LLAMA = (
    "model.embed_tokens.weight:2 model.layers.0.self_attn.q_proj.weight:2 model.layers.0.input_layernorm.weight:1"
    " model.layers.0.self_attn.rotary_emb.inv_freq:1 model.norm.weight:1 lm_head.weight:2"
)
TORCHREC = (
    "model.sparse_arch.embedding_bag_collection.embedding_bags.t_cat_0.weight:2"
    " model.sparse_arch.embedding_collection.embeddings.t_user.weight:2 model.dense_arch.model._mlp.0._linear.weight:2"
    " model.over_arch.model.1.bias:1"
    " optim.state.model.sparse_arch.embedding_bag_collection.embedding_bags.t_cat_0.weight.t_cat_0.momentum1:1"
    " optim.state.model.over_arch.model.1.bias.exp_avg:1"
    " optim.state.model.over_arch.model.1.bias.step:0"
)
KERAS = (
    "dense/kernel:0:2 dense/bias:0:1 embedding/embeddings:0:2 layer_with_weights-0/kernel/.ATTRIBUTES/VARIABLE_VALUE:2"
    " save_counter/.ATTRIBUTES/VARIABLE_VALUE:0 optimizer/learning_rate/.ATTRIBUTES/VARIABLE_VALUE:0"
    " bert/embeddings/word_embeddings:2 bert/embeddings/word_embeddings/adam_m:2 global_step:0"
)
MODELS: Mapping[str, str] = {
    "bert": BERT,
    "gpt2": GPT2,
    "dlrm": DLRM,
    "vit": VIT,
    "t5": T5,
    "llama": LLAMA,
    "torchrec": TORCHREC,
    "keras": KERAS,
}


def variables_of(model: str, seed: int = 0) -> dict[str, npt.NDArray[np.float32]]:
    """Return small variables with the names of a model, each of other values."""
    rng = np.random.default_rng(seed)
    pairs = (word.rpartition(":") for word in MODELS[model].split())
    shapes = {name: (6, 4, 3, 2)[: int(dims)] for name, _, dims in pairs}
    return {name: np.asarray(rng.standard_normal(shape), np.float32) for name, shape in shapes.items()}
