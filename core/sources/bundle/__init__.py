"""TensorFlow's tensor bundles, with the tables of DeepRec, TFPlus and TFRA."""
