"""safetensors files and sets of them."""
