"""What `ihdm` can do, one file for each verb. Heavy imports wait until a verb runs."""
