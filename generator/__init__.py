"""From ``variants.toml`` and the templates to CUDA sources and the dispatch table. Needs neither GPU nor driver.

Importing this package imports nothing: the runtime takes single modules from it.
"""
