"""Which units has the course, in their order?"""

from neocpu.oracle.course.unit import CourseUnit
from neocpu.oracle.course.units import (
    backward,
    bags,
    dlrm,
    narrow,
    order,
    planner,
    ranks,
    run,
    tiers,
    trees,
)

UNITS: tuple[CourseUnit, ...] = tuple(
    module.UNIT
    for module in (dlrm, bags, order, backward, narrow, ranks, trees, planner, tiers, run)
)
