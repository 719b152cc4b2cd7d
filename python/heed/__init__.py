"""Heed from Python: the arena (`python -m heed.arena`), where attention kernels meet side by side."""
