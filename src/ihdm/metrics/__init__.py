"""What images are compared by: Inception features (FID, KID), nearest neighbours, power spectra."""
