"""Comparing images: Inception features (FID, KID), nearest neighbours, power spectra."""
