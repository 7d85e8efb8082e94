"""What is kept on disk: run folders, cases, simulations, calibration."""
