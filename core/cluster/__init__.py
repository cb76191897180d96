"""Work on a Dask cluster: an `Executor` over a `distributed.Client`. Nothing of Dask is imported without an address."""
