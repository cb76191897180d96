"""Checkpoints of objects in the sense of `tf.train`: arrays are saved and restored under the paths of their owners."""
