"""Which words does every wing speak? Errors, records, formats, trees, paths; no arithmetic."""
