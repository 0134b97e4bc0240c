"""The same copies in CUDA C++, compiled where they run: a yardstick for Triton's launches."""
