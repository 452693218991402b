"""What is a machine? Peaks, achieved rates as curves, presets, calibration."""
