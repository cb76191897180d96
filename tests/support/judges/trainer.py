"""The directories of a transformers Trainer, and the values of its model at each of them: trainer.py OUT.

It runs under a Python that has torch, transformers and accelerate, as a program. Step K is `OUT/run/checkpoint-K`, its
truth `OUT/K.npz`.
"""

import os
import sys

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

OUT = sys.argv[1]
SIZES = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


class Truth(TrainerCallback):  # type: ignore[misc]
    """Keeps the values of the model whenever the Trainer saves it."""

    def on_save(self, args, state, control, model=None, **others):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN003, ANN201, D102
        del args, control, others
        values = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
        np.savez(f"{OUT}/{state.global_step}.npz", **values)


torch.manual_seed(0)
rows = [{"input_ids": torch.randint(0, 50, (8,)), "labels": torch.tensor(number % 2)} for number in range(12)]
options = {"max_steps": 6, "save_steps": 2, "per_device_train_batch_size": 4, "report_to": [], "use_cpu": True}
trainer = Trainer(
    BertForSequenceClassification(BertConfig(**SIZES, max_position_embeddings=16)),
    TrainingArguments(f"{OUT}/run", logging_strategy="no", **options),
    train_dataset=rows,
    callbacks=[Truth()],
)
trainer.train()
