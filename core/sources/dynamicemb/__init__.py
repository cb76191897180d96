"""The files of dynamicemb: hash tables of TorchRec models, as NVIDIA's recsys-examples and TorchEasyRec save them."""
