"""Kernels and their launchers. No benchmark code in here."""
