"""Where do the bytes of rows lie? In regions of memory, and in files that survive a kill."""
