"""Plots and tables: functions from frames to figures, without input or output."""
