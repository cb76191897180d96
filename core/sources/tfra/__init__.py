"""Files of the FileSystemSaver of TensorFlow Recommenders Addons (TFRA)."""
