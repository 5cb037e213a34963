"""What every layer may use: errors, limits, clock, configuration."""
