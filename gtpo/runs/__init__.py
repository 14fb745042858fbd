"""What lies on disk: train runs and eval runs, written and read here and nowhere else."""
