"""safetensors: tensors behind a JSON header, in one file or in a set with an index, as Hugging Face saves them."""
