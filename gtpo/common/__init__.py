"""What every package of gtpo uses: errors, files, log, provenance, package versions."""
