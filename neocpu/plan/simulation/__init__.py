"""How long does a step take on a machine that is not there? Events, links, schedules."""
