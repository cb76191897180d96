"""The wire messages of every checkpoint generation, for small parts and for tests.

`model_v0_pb2` to `model_v4_pb2` are generated from the `.proto` files beside them; `README.md` is the reference of the
format and says how to generate them again. Their proto packages are this project's own, so they load beside
ElasticDL's modules and TensorFlow's. Bulk values never pass through them: see `edl_ckpt.core.wire`.
"""
