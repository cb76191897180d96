"""The files of TFRA's FileSystemSaver: tables of TensorFlow Recommenders Addons beside a TensorFlow checkpoint."""
