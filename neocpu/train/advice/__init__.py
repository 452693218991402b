"""Which config suits these data? A look at a log, and the TOML that comes of it.

look.py       the first rows of a log as text columns: counts, distinct values, kinds of values
columns.py    what was seen of a column, and its role
labels.py     which column is the label: a click, or a number
roles.py      label, dense number, category, list or left out: a guess for each column
times.py      forms of times; categories.py of categories and lists; numbers.py of numbers, and how
              they enter the model
names.py      what names of columns say; outcomes.py what gives the label away
probe.py      a model of one column, on rows held out
features.py   columns -> features and tables
sizes.py      rows of tables, batch size and rates
findings.py   what was found, for the screen
write.py      the commented config (`config.toml.j2`), which `neocpu init` writes
"""
