"""Which config suits these data? A look at a log, and the TOML that comes of it.

look.py       the first rows of a log as text columns: counts, distinct values, kinds of values
labels.py     which column is the label: a click, or a number
roles.py      label, dense number, category, list or left out: a guess for each column
sizes.py      rows of tables, batch size and rates
write.py      the commented config (`config.toml.j2`), which `neocpu init` writes
complaints.py what in a config does not serve, a plain line each
"""
