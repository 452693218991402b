"""HDF5 files that others may have made, damaged or cut: laid out in memory, sealed, and read
through one door.

    disk.py    writes bytes to files, and claims space for them
    draft.py   lays a file out in memory, so that a full disk is our error and not HDF5's
    seal.py    a checksum over all that HDF5 reads before it reads data
    walk.py    looks at every object of a file, and refuses what ours never have
    probe.py   does so in another process, for files that have no seal
    door.py    opens files for reading; nobody else does

The SSD tier has a format of its own rules (`tables/storage/extents.py`): its files change in place.
"""
