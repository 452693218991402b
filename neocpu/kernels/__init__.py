"""Who does the arithmetic? Functions over arrays, written three ways: tuned, `plain/`, `twins/`."""
