"""Ray clusters: submit recipes as jobs, keep run directories in object storage."""
