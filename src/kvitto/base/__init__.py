"""Modules that every layer may use: errors, limits, clock, configuration."""
