"""C++ for the CPU: its sources, the build at first use, and the launchers."""
